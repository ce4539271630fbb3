"""Nothing that goes wrong within the recorder reaches the loop; what reaches it is what it made."""

from __future__ import annotations

import math
import warnings

import pytest
import torch

from forensics.errors import UsageError
from forensics.record import loop_watch, readback
from forensics.record.recorder import Recorder
from forensics.runlog.manifest import read_manifest
from forensics.runlog.steps_csv import read_steps
from tests.unit.record.own_loops import batch, loss_of, net, sgd


class Loop:
    def __init__(self, path, **options):
        self.model = net()
        self.optimizer = sgd(self.model)
        self.said: list[str] = []
        options = {"max_norm": 1.0, "say": self.said.append, **options}
        self.path, self.recorder = path, Recorder(path, self.model, self.optimizer, **options)

    def step(self, i: int = 0) -> float:
        self.optimizer.zero_grad()
        loss = loss_of(self.model, i)
        loss.backward()
        norm = self.recorder.gradients(loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.recorder.end_step()
        return norm


def broken(*args, **kwargs):
    raise RuntimeError("CUDA error: device-side assert triggered\nsecond line")


@pytest.mark.parametrize(
    ("where", "call"),
    [
        ("forensics.record.loop_watch.grad_norms", "gradients()"),
        ("forensics.record.loop_watch.entry_of", "the hook of optimizer.step()"),
        ("forensics.record.loop_watch.read_scalars", "end_step()"),
        ("forensics.record.step_output.SnapshotTaker.take", "gradients()"),
    ],
)
def test_a_failure_is_said_once_and_the_training_is_the_same(where, call, tmp_path, monkeypatch):
    loop, twin = Loop(tmp_path / "run", snapshot_every=1), Loop(tmp_path / "twin")
    loop.step(0)
    twin.step(0)
    with monkeypatch.context() as patch:
        patch.setattr(where, broken)
        norms = [loop.step(1), loop.step(2)]
    # A clip may go by the norm: one that is NaN would spoil every gradient.
    assert norms == pytest.approx([twin.step(1), twin.step(2)])
    assert loop.step(3) == twin.step(3)
    for ours, theirs in zip(loop.model.parameters(), twin.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    loop.recorder.close()
    twin.recorder.close()
    (line,) = [line for line in loop.said if line.startswith(f"step 1: {call} failed")]
    assert "RuntimeError: CUDA error: device-side assert triggered)" in line
    (missing,) = [m for m in read_manifest(loop.path).missing if m.startswith(call)]
    assert missing.startswith(f"{call}: 2 calls failed between steps 1 and 2 (RuntimeError")
    steps = read_steps(loop.path / "steps.csv").step.tolist()
    assert steps == ([0, 3] if call == "end_step()" else [0, 1, 2, 3])


def test_where_warnings_are_errors_ours_is_none(tmp_path, monkeypatch):
    loop = Loop(tmp_path / "run", say=warnings.warn)
    monkeypatch.setattr(loop_watch, "grad_norms", broken)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loop.step() > 0
    loop.recorder.close()


def test_ctrl_c_passes_through(tmp_path, monkeypatch):
    loop = Loop(tmp_path / "run")

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop_watch, "grad_norms", interrupted)
    with pytest.raises(KeyboardInterrupt), loop.recorder:
        loop.step()
    assert read_manifest(loop.path).ended.how == "interrupted"


def test_a_dying_device_still_closes_the_run(tmp_path, monkeypatch):
    loop = Loop(tmp_path / "run")
    loop.recorder._watch._defer = True
    loop.step()
    loop.step()
    monkeypatch.setattr(loop_watch, "read_scalars", broken)
    loop.recorder.close()
    steps = read_steps(loop.path / "steps.csv")
    assert steps.step.tolist() == [0, 1]
    assert steps.present("grad_l2_post_clip").tolist() == [True, False]
    assert read_manifest(loop.path).ended.how == "finished"
    assert not (loop.path / "run.lock").exists()


def test_odd_calls_are_no_error(tmp_path):
    loop = Loop(tmp_path / "run")
    with loop.recorder as recorder:
        assert recorder.gradients() == 0.0  # no gradient at all
        recorder.end_step()  # and no loss
        recorder.end_step(torch.ones(3))  # which is no number
        recorder.note(nonsense=object())
        recorder.saved(object())
        loop.step()
    steps = read_steps(loop.path / "steps.csv")
    assert steps.step.tolist() == [0, 1, 2]
    assert steps.present("loss").tolist() == [False, False, True]
    assert not steps.present("grad_l2_pre_clip")[0]
    assert len(read_manifest(loop.path).missing) == 3


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (torch.ones(3), "its shape is (3,), not that of one number: give the mean"),
        (torch.ones((), dtype=torch.complex64), "it is complex: give its real part"),
        ([1.0, 2.0], "not 'list'"),
        (10**400, "int too large"),
    ],
)
def test_a_loss_that_is_no_number_costs_its_cell_alone(given, why, tmp_path):
    loop, twin = Loop(tmp_path / "run"), Loop(tmp_path / "twin")
    with loop.recorder as recorder, twin.recorder:
        for i in range(3):
            loss = loss_of(loop.model, i)
            loop.optimizer.zero_grad()
            loss.backward()
            norm = recorder.gradients(given if i == 1 else loss)
            torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
            loop.optimizer.step()
            recorder.end_step()
            assert norm == twin.step(i)
    ours, theirs = (read_steps(one.path / "steps.csv") for one in (loop, twin))
    assert ours.present("loss").tolist() == [True, False, True]
    norms = [table["grad_l2_pre_clip"].tolist() for table in (ours, theirs)]
    assert norms[0] == norms[1]
    (line,) = loop.said
    assert line.startswith("step 1: the loss failed (")
    assert why in line
    assert read_manifest(loop.path).loop == {}  # the order of the calls was right


@pytest.mark.parametrize(("code", "how"), [(None, "finished"), (0, "finished"), (3, "exception")])
def test_a_loop_that_leaves_by_sys_exit_has_raised_only_where_it_says_so(code, how, tmp_path):
    loop = Loop(tmp_path / "run")
    loop.step(0)
    loop.step(1)
    with pytest.raises(SystemExit), loop.recorder:
        raise SystemExit(code)
    ended = read_manifest(loop.path).ended
    assert (ended.how, ended.step) == (how, 1 if how == "finished" else 2)


def test_a_loop_that_changes_its_folder_goes_on_recording_where_it_began(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loop = Loop("run", checkpoint_every=1, snapshot_every=1)
    with loop.recorder:
        loop.step(0)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        loop.step(1)
        loop.recorder.saved("own.pt")
    manifest = read_manifest(tmp_path / "run")
    assert (loop.said, manifest.missing) == ([], ())
    assert manifest.ended.how == "finished"
    assert manifest.states[0].path == "../elsewhere/own.pt"
    assert (tmp_path / "run/checkpoints/step-00000002.pt").exists()
    assert not list((tmp_path / "elsewhere").iterdir())
    assert not (tmp_path / "run/run.lock").exists()


class Foreign:
    """Steps as an optimizer does, and is none."""

    def __init__(self, inner):
        self.param_groups, self.step = inner.param_groups, inner.step


@pytest.mark.parametrize(
    ("model", "optimizers", "line"),
    [
        (net(), lambda model: [], "optimizers: hold no parameter"),
        (net(), lambda model: Foreign(sgd(model)), "a Foreign is no torch.optim.Optimizer"),
        (net(), lambda model: model.parameters(), "a Parameter is no torch.optim.Optimizer"),
        (torch.nn.LazyLinear(2), sgd, "parameter weight: has no shape yet; run one forward"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_the_first_step(
    model, optimizers, line, tmp_path
):
    with pytest.raises(UsageError) as refused:
        Recorder(tmp_path / "run", model, optimizers(model))
    assert line in refused.value.line()
    assert not (tmp_path / "run").exists()


class TestBlockingReads:
    """With the loss given, a step waits for the device once; ``defer`` is what accelerators get."""

    def count(self, monkeypatch) -> list[int]:
        reads: list[int] = []

        def counted(scalars):
            if scalars:
                reads.append(len(scalars))
            return readback.read_scalars(scalars)

        for module in ("loop_watch", "tensor_norms"):
            monkeypatch.setattr(f"forensics.record.{module}.read_scalars", counted)
        return reads

    def test_once_a_step_and_the_rows_are_the_same(self, tmp_path, monkeypatch):
        loop, twin = Loop(tmp_path / "run", snapshot_every=0), Loop(tmp_path / "twin")
        loop.recorder._watch._defer = True
        reads = self.count(monkeypatch)
        for i in range(5):
            loop.step(i)
        assert len(reads) == 5
        assert read_steps(loop.path / "steps.csv").step.tolist() == [0, 1, 2, 3]  # one waits
        loop.recorder.close()
        for i in range(5):
            twin.step(i)
        twin.recorder.close()
        ours, theirs = (read_steps(one.path / "steps.csv") for one in (loop, twin))
        for name in ("step", "loss", "grad_l2_pre_clip", "grad_l2_post_clip", "skipped"):
            assert ours[name].tolist() == theirs[name].tolist(), name

    def test_a_bad_step_is_on_disk_at_once(self, tmp_path):
        loop = Loop(tmp_path / "run")
        loop.recorder._watch._defer = True
        loop.step()
        with torch.no_grad():
            loop.model[0].weight[0, 0] = math.nan
        loop.step()
        assert read_steps(loop.path / "steps.csv").step.tolist() == [0, 1]
        loop.recorder.close()

    @pytest.mark.parametrize("fused", [False, True])
    def test_an_overflow_under_a_scaler_is_seen_without_waiting(self, fused, tmp_path, monkeypatch):
        model = net()
        optimizer = sgd(model, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
        path = tmp_path / "run"
        recorder = Recorder(path, model, optimizer, scaler=scaler, max_norm=1.0, snapshot_every=0)
        recorder._watch._defer = True
        for i in range(6):
            optimizer.zero_grad()
            loss = model(batch(i)).square().mean() * 64
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            recorder.gradients(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            recorder.end_step()
        recorder.close()
        steps = read_steps(path / "steps.csv")
        skipped = steps["skipped"].tolist()
        assert skipped[0]
        assert not skipped[-1]
        scales = steps["scaler_scale"].tolist()
        assert scales == [2.0 ** (126 - sum(skipped[:i])) for i in range(6)]
