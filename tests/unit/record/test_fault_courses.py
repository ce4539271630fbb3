"""Every fault strikes at its step and not before; recorded twice, once with a break in between."""

import csv
import math
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.fault_answers import CONTROLS, FAULTS
from forensics.errors import TrainingRaisedError
from forensics.record.assembly import assemble
from forensics.record.null_recorder import NullRecorder
from forensics.record.precision import choose_precision
from forensics.record.recipe_lookup import registered_recipes
from forensics.record.reference_loop import RecordOptions, record_run
from forensics.runlog.run import load_run

RECIPES, _ = registered_recipes()
ANSWERS = {answer.recipe: answer for answer in FAULTS}
SKIPS_AT_THE_START = ("scheduler-ahead", "control-scaler-warm-up")
SILENT = (
    "batchnorm-poisoned",
    "clip-before-unscale",
    "gradient-underflow-fp16",
    "recompute-other-mask",
    "resume-without-optimizer",
    "saved-tensor-edited",
    "stale-update-bf16",
)
STEPS = {"lr-too-high": 64, "batchnorm-poisoned": 40, "bad-sample": 34, "clip-before-unscale": 20}

pytestmark = pytest.mark.filterwarnings(r"ignore:std\(\). degrees of freedom:UserWarning")


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """A recording of each recipe with a checkpoint every few steps, made once."""
    home = tmp_path_factory.mktemp("faults")
    made = {}

    def get(name):
        if name not in made:
            made[name] = home / name
            record(name, made[name])
        return made[name]

    return get


def settings(name):
    recipe = RECIPES[name]
    config = replace(recipe.defaults, device="cpu")
    config = replace(config, steps=STEPS.get(name, config.steps))
    return config, 2 if config.steps <= 24 else config.steps // 5


def record(name, out, *, until=None, resume=False):
    config, every = settings(name)
    options = RecordOptions(
        out, checkpoint_every=every, keep="last:99", snapshot_every=0, resume=resume
    )

    def stop(done, _):
        if done == until:
            raise KeyboardInterrupt

    with suppress(TrainingRaisedError, KeyboardInterrupt):
        record_run(RECIPES[name](config), config, options, on_step=stop, say=lambda _: None)


def rows(out):
    with (out / "steps.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k != "time_s"} for row in csv.DictReader(file)]


def states(out):
    paths = sorted((out / "checkpoints").glob("step-*.pt"))
    loaded = [torch.load(path, weights_only=True) for path in paths]
    return sorted(loaded, key=lambda state: state["step"])


def ready(name, steps=0):
    """The training after some steps of its loop, and the recipe."""
    config, _ = settings(name)
    recipe = RECIPES[name](config)
    device = torch.device("cpu")
    precision = choose_precision(config.precision, device, lambda _: None)
    training = assemble(recipe, config, precision, device)
    for step in range(steps):
        recipe.step(training, recipe.batch(step), NullRecorder())
    return recipe, training


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.nan_to_num(), other.nan_to_num())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == other or (one != one and other != other)


def first_bad(run):
    """The first row that is bad by any number in it."""
    steps = run.steps
    bad = steps["skipped"].astype(bool) | steps["norm_overflow"].astype(bool)
    for column in ("loss", "grad_l2_pre_clip", "lr", "scaler_scale"):
        bad |= steps.present(column) & ~np.isfinite(steps[column])
    return int(steps.step[bad][0]) if bad.any() else None


@pytest.mark.parametrize("name", [*ANSWERS, *CONTROLS])
def test_a_break_and_a_resume_change_no_bit(recorded, tmp_path, name):
    whole, out = recorded(name), tmp_path / name
    _, every = settings(name)
    last = int(rows(whole)[-1]["step"])
    record(name, out, until=min(last, 2 * every + 1))
    record(name, out, resume=True)
    assert rows(out) == rows(whole)
    one, other = states(out)[-1], states(whole)[-1]
    assert one["step"] == other["step"]
    for key in ("model", "optimizers", "schedulers", "scaler", "extra", "rng"):
        assert equal(one[key], other[key]), key


@pytest.mark.parametrize("name", [name for name in ANSWERS if name not in SILENT])
def test_the_log_is_sound_until_the_fault(recorded, name):
    run, answer = load_run(recorded(name)), ANSWERS[name]
    if name in ("batch-norm-of-one", "spike-skipped-half"):
        assert (run.manifest.ended.how, run.manifest.ended.step) == ("exception", answer.step)
        assert first_bad(run) in (None, answer.step - 1)
        return
    shown = answer.step + (name == "adam-eps-fp16")  # its rows hold no parameters
    assert first_bad(run) == shown


@pytest.mark.parametrize("name", SILENT)
def test_the_silent_ones_leave_nothing_bad_in_the_log(recorded, name):
    run = load_run(recorded(name))
    assert first_bad(run) is None
    assert run.manifest.ended.how == "finished"


@pytest.mark.parametrize("name", CONTROLS)
def test_the_controls_are_sound(recorded, name):
    run = load_run(recorded(name))
    assert np.isfinite(run.steps["loss"]).all()
    for kept in states(recorded(name)):
        assert all(torch.isfinite(t).all() for t in kept["model"].values())
    skips = run.steps.step[run.steps["skipped"].astype(bool)].tolist()
    warm_up = name in SKIPS_AT_THE_START
    assert skips == list(range(len(skips))), "only at the start"
    assert bool(skips) is warm_up
    assert len(skips) < len(run.steps) / 2


def test_the_loss_spike_of_the_control_is_a_spike(recorded):
    loss = load_run(recorded("control-loss-spike")).steps["loss"]
    assert loss[5] > 40 * np.median(loss)
    assert loss[6:].max() < 5 * np.median(loss)


def test_the_control_s_second_branch_rests():
    recipe, training = ready("control-unused-branch")
    for step in (0, 1):
        training.model.zero_grad(set_to_none=True)
        training.loss(training.model, recipe.batch(step)[0]).backward()
        assert (training.model.sometimes.weight.grad is None) is (step == 0)


# -- the silent ones, by what was applied -----------------------------------------------------


def test_batchnorm_statistics_are_lost_at_the_step(recorded):
    for kept in states(recorded("batchnorm-poisoned")):
        lost = torch.isinf(kept["model"]["bn.running_var"]).any()
        assert bool(lost) is (kept["step"] > 37)


def test_second_moment_kills_a_weight(recorded):
    before, *_, after = (s for s in states(recorded("second-moment-overflow")) if s["step"] > 5)
    moment = after["optimizers"][0]["state"][0]["exp_avg_sq"]
    assert torch.isinf(moment).sum() == 1
    dead = torch.isinf(moment)
    moved = before["model"]["head.weight"] != after["model"]["head.weight"]
    assert not moved[dead].any()
    assert moved[~dead].all()


def test_underflowed_gradients_move_nothing(recorded):
    first, *_, last = states(recorded("gradient-underflow-fp16"))
    assert torch.equal(first["model"]["layers.0.weight"], last["model"]["layers.0.weight"])
    assert not torch.equal(first["model"]["head.bias"], last["model"]["head.bias"])
    recipe, training = ready("gradient-underflow-fp16")
    training.loss(training.model, recipe.batch(0)[0]).backward()
    assert training.model.layers[0].weight.grad.abs().max() > 0, "in fp32 there is a gradient"


def test_stale_updates_move_nothing(recorded):
    first, *_, last = states(recorded("stale-update-bf16"))
    assert torch.equal(first["model"]["head.weight"], last["model"]["head.weight"])
    norms = load_run(recorded("stale-update-bf16")).steps["grad_l2_pre_clip"]
    assert norms.min() > 1


def test_the_recomputed_mask_is_another_one():
    recipe, training = ready("recompute-other-mask")
    inputs, targets = recipe.batch(0)[0]
    model = training.model
    weight = model.body[0].weight
    torch.manual_seed(1)
    direct = torch.nn.functional.mse_loss(model.head(model.body(inputs)), targets)
    (right,) = torch.autograd.grad(direct, weight)
    torch.manual_seed(1)
    loss = training.loss(model, (inputs, targets))
    (wrong,) = torch.autograd.grad(loss, weight)
    assert loss == direct
    assert (wrong - right).norm() > 0.3 * right.norm()


def test_the_edited_output_gives_another_gradient():
    recipe, training = ready("saved-tensor-edited")
    inputs, _ = recipe.batch(0)[0]
    body = training.model.body
    (right,) = torch.autograd.grad(
        body(inputs).exp().clamp(max=1).square().mean(), body.weight, retain_graph=True
    )
    (wrong,) = torch.autograd.grad(training.loss(training.model, (inputs, None)), body.weight)
    assert (wrong - right).norm() > 0.3 * right.norm()


def test_a_forgotten_optimizer_takes_full_steps():
    recipe, training = ready("resume-without-optimizer", 399)
    sizes = []
    for step in range(399, 402):
        before = [p.detach().clone() for p in training.model.parameters()]
        recipe.step(training, recipe.batch(step), NullRecorder())
        after = training.model.parameters()
        moved = [(a.detach() - b).square().sum() for a, b in zip(after, before, strict=True)]
        sizes.append(float(sum(moved).sqrt()))
    assert sizes[1] > 5 * sizes[0]


def test_the_resumed_scale_is_the_initial_one(recorded):
    run = load_run(recorded("resume-without-scaler"))
    scale = run.steps["scaler_scale"]
    assert scale[:12].tolist() == [256.0] * 12
    assert run.steps["skipped"][12:14].all()
    assert scale[13] == 32768.0
    assert not run.steps["skipped"][-1]


def test_the_schedule_runs_ahead(recorded):
    steps = load_run(recorded("scheduler-ahead")).steps
    skipped = steps["skipped"].astype(bool)
    assert skipped[:10].all()
    assert (np.diff(steps["lr"]) < 0).all(), "in skipped steps, too"


def test_the_hook_counts_the_hidden_skip(recorded):
    *_, last = states(recorded("fused-hidden-skip"))
    run = load_run(recorded("fused-hidden-skip"))
    assert last["extra"]["updates"]["steps"] == len(run.steps)
    assert run.steps["skipped"].sum() == 1
    assert int(last["optimizers"][0]["state"][0]["step"]) == len(run.steps) - 1


def test_the_scale_ends_at_zero(recorded):
    steps = load_run(recorded("scale-to-zero")).steps
    assert steps["scaler_scale"][-1] == 0
    assert np.isfinite(steps["loss"][:5]).all()
    assert np.isnan(steps["loss"][185:]).all(), "the data are sound again"


def test_a_bit_flips_once_and_not_in_a_replay():
    def weight(replaying):
        recipe, training = ready("bit-flip", 5)
        recorder = NullRecorder()
        recorder.replaying = replaying
        optimizer = training.optimizers[0]
        optimizer.step = lambda: None  # look at the weight before the step changes it
        recipe.step(training, recipe.batch(5), recorder)
        return training.model.layers[0].weight.detach()

    flipped, kept = weight(False), weight(True)
    assert (flipped != kept).nonzero().tolist() == [[3, 1]]
    assert flipped[3, 1] > 1e37
    assert 0.2 < kept[3, 1] < 0.4


def test_the_bad_rank_shows_in_the_mean_alone(recorded):
    run = load_run(recorded("one-bad-rank"))
    assert np.isfinite(run.steps["loss"][:6]).all()
    assert math.isnan(run.steps["grad_l2_pre_clip"][5])


def test_clip_faults_differ_in_what_is_left(recorded):
    kept = {
        name: next(s for s in states(recorded(name)) if s["step"] == 6)["model"]
        for name in ("clip-inf-to-nan", "clip-spreads-nan", "clip-norm-overflow")
    }
    bad = {
        name: {key for key, tensor in model.items() if torch.isnan(tensor).any()}
        for name, model in kept.items()
    }
    assert bad["clip-inf-to-nan"] == {"level"}
    assert bad["clip-spreads-nan"] == {"level", "body.weight", "body.bias"}
    assert bad["clip-norm-overflow"] == set()
    steps = load_run(recorded("clip-norm-overflow")).steps
    assert steps["grad_l2_post_clip"][5] == 0, "the whole step is lost"
    assert not steps["skipped"].any()
