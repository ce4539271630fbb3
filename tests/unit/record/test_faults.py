"""Every recipe does what its name says: recorded for a moment, and looked at."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Severity
from forensics.errors import TrainingRaisedError
from forensics.record.config import Config
from forensics.record.recipe_lookup import registered_recipes
from forensics.record.reference_loop import RecordOptions, record_run
from forensics.runlog.run import load_run

RECIPES, _ = registered_recipes()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Records a recipe once, with settings of one's own, and returns the run."""
    home = tmp_path_factory.mktemp("runs")
    runs = {}

    def get(name, *, snapshot_every=20, **settings):
        key = (name, *sorted(settings.items()))
        if key not in runs:
            out = home / str(len(runs))
            config = Config.from_dict({"device": "cpu", **settings}, base=RECIPES[name].defaults)
            options = RecordOptions(out, checkpoint_every=0, snapshot_every=snapshot_every)
            record_run(RECIPES[name](config), config, options, say=lambda _: None)
            runs[key] = load_run(out)
        return runs[key]

    return get


def skips(run):
    return run.steps.step[run.steps["skipped"]].tolist()


def reasons(run):
    column = run.steps.columns["skip_reason"]
    texts = {column.text_at(row) for row in range(len(run.steps))}
    return {text for text in texts if text}


def tensors(batch):
    if isinstance(batch, Tensor):
        return [batch]
    return [tensor for part in batch for tensor in tensors(part)]


@pytest.mark.parametrize("name", RECIPES)
def test_batches_can_be_made_again_and_taken_apart(name):
    recipe = RECIPES[name](replace(RECIPES[name].defaults, accumulation=2))
    step = recipe.config.data.get("fault_step", 50)
    state = torch.get_rng_state()
    once, again = recipe.batch(step), recipe.batch(step)
    assert len(once) == 2
    for one, other in zip(tensors(once), tensors(again), strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
    assert torch.equal(state, torch.get_rng_state())
    wanted = [min(3, len(tensors([once[0]])[0]) - 1), 0]
    picked = recipe.select(once[0], wanted)
    for whole, part in zip(tensors([once[0]]), tensors([picked]), strict=True):
        assert torch.equal(part.nan_to_num(), whole[wanted].nan_to_num())


@pytest.mark.parametrize("name", RECIPES)
def test_models_stay_small(name):
    torch.manual_seed(0)
    recipe = RECIPES[name]()
    model = recipe.build(recipe.config).model
    assert max(size for p in model.parameters() for size in p.shape[-1:]) <= 128
    assert sum(p.numel() for p in model.parameters()) < 40_000
    assert len(RECIPES[name].summary) <= 75, "one line of `record --list`"


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("healthy-fp32", 300),
        ("healthy-fp16", 450),
        ("healthy-mlp", 200),
        ("healthy-gpt", 80),
        ("healthy-cnn", 100),
        ("healthy-lstm", 150),
    ],
)
def test_health_learns_and_no_rule_warns(recorded, name, steps):
    run = recorded(name, steps=steps)
    loss = run.steps["loss"]
    assert np.median(loss[-20:]) < 0.85 * np.median(loss[:20])
    found = diagnose(run).findings
    assert [f.message for f in found if f.severity >= Severity.WARNING] == []


def test_healthy_fp16_calibrates_and_then_overflows_once_an_interval(recorded):
    run = recorded("healthy-fp16", steps=450)
    bad = skips(run)
    assert bad[:2] == [0, 1], "the scale starts too high"
    later = [step for step in bad if step > 20]
    assert 1 <= len(later) <= 5
    assert {text.split(":")[0] for text in reasons(run)} == {"nonfinite_grad"}


def test_inf_gradient(recorded):
    run = recorded("inf-gradient")
    assert len(run.steps) == 20
    assert skips(run) == [5]
    assert reasons(run) == {"nonfinite_grad:head.weight"}
    assert run.steps["grad_l2_pre_clip"][5] == math.inf
    counts = run.params.matrix("grad_nonfinite")
    row = counts.steps.tolist().index(5)
    assert dict(zip(counts.names, counts.values[row], strict=True))["head.weight"] == 1
    assert counts.values[row].sum() == 1


def test_bad_sample(recorded):
    run = recorded("bad-sample")
    assert skips(run) == [30]
    assert reasons(run) == {"nonfinite_loss"}


def test_target_spike(recorded):
    run = recorded("target-spike", steps=120)
    loss, post = run.steps["loss"], run.steps["grad_l2_post_clip"]
    assert skips(run) == []
    assert loss[100] > 1e12 * np.median(loss)
    assert post.max() <= 4.0 * (1 + 1e-6)
    assert loss[101:].max() < 10 * loss[80:100].max()


def test_where_trap(recorded):
    run = recorded("where-trap", steps=60)
    assert skips(run) == [40]
    assert np.isfinite(run.steps["loss"]).all()
    assert {text.split(":")[0] for text in reasons(run)} == {"nonfinite_grad"}


def test_nan_applied(recorded):
    run = recorded("nan-applied", steps=60)
    assert skips(run) == []
    assert math.isnan(run.steps["grad_l2_pre_clip"][40])
    assert np.isfinite(run.steps["loss"][:41]).all()
    assert np.isnan(run.steps["loss"][41:]).all()


def test_batchnorm_poisoned(recorded):
    run = recorded("batchnorm-poisoned", steps=60)
    assert skips(run) == []
    assert np.isfinite(run.steps["loss"]).all()
    bad = run.params.matrix("value_nonfinite", "buffer")
    first = bad.steps[bad.values.sum(axis=1) > 0].tolist()
    assert first == [40]


def test_vanishing(recorded):
    run = recorded("vanishing", steps=40)
    norms = run.params.matrix("grad_l2")
    by_name = dict(zip(norms.names, norms.values[0], strict=True))
    assert 0 < by_name["layers.0.weight"] < 1e-9 * by_name["head.weight"]


def test_frozen_layer(recorded):
    run = recorded("frozen-layer", steps=40)
    norms = run.params.matrix("grad_l2")
    moved = {
        name for name, there in zip(norms.names, norms.present.any(axis=0), strict=True) if there
    }
    assert moved == {"head.weight", "head.bias"}


@pytest.mark.parametrize(("name", "learns"), [("clip-every-step", True), ("clip-starved", False)])
def test_every_step_is_clipped_and_only_adam_learns(recorded, name, learns):
    run = recorded(name, steps=200)
    assert (run.steps["grad_l2_pre_clip"] > 5 * run.steps["grad_l2_post_clip"]).all()
    loss = run.steps["loss"]
    left = np.median(loss[-30:]) / np.median(loss[:30])
    assert left < 0.8 if learns else left > 0.95


def test_clip_before_unscale(recorded):
    run = recorded("clip-before-unscale", steps=80)
    assert run.steps["grads_scaled"].all()
    norm, scale = run.steps["grad_l2_pre_clip"], run.steps["scaler_scale"]
    assert len(set(scale.tolist())) > 1, "a changing scale gives the fault away"
    assert np.median(norm / scale) < 4.0 < np.median(norm)
    assert run.steps["grad_l2_post_clip"].max() < 0.01


def test_fp16_overflow_is_natural_and_bf16_never_skips(recorded):
    half, brain = (
        recorded("fp16-overflow", steps=120),
        recorded("fp16-overflow", steps=120, precision="bf16"),
    )
    assert len(skips(half)) >= 3
    assert reasons(half) == {"nonfinite_loss"}
    assert skips(brain) == []
    assert np.isfinite(brain.steps["loss"]).all()


def test_scaler_oscillation(recorded):
    run = recorded("scaler-oscillation", steps=300)
    octaves = np.log2(run.steps["scaler_scale"])
    deep = [octaves[k * 60 + 40 : k * 60 + 61] for k in range(5)]
    assert all(part.max() - part.min() >= 5 for part in deep)
    assert np.isfinite(run.steps["loss"]).all()


def test_scaler_frozen(recorded):
    run = recorded("scaler-frozen", steps=120)
    assert len(skips(run)) >= 3
    assert reasons(run) == {"nonfinite_loss"}
    assert set(run.steps["scaler_scale"].tolist()) == {1024.0}
    assert not run.steps.present("grad_l2_pre_clip")[run.steps["skipped"]].any()


def test_update_forgotten(recorded, tmp_path):
    recipe = RECIPES["update-forgotten"]
    config = replace(recipe.defaults, device="cpu")
    with pytest.raises(TrainingRaisedError, match="unscale_"):
        record_run(recipe(config), config, RecordOptions(tmp_path / "x"), say=lambda _: None)
    run = load_run(tmp_path / "x")
    assert skips(run) == [run.steps.step[-1]]
    ended = run.manifest.ended
    assert (ended.how, ended.step) == ("exception", int(run.steps.step[-1]) + 1)
    assert ended.message.startswith("RuntimeError")


def test_lr_too_high_grows_smoothly_until_inf(recorded):
    run = recorded("lr-too-high", steps=80)
    norm = run.steps["grad_l2_pre_clip"][run.steps.present("grad_l2_pre_clip")]
    growth = np.diff(np.log(norm))
    assert np.median(growth) > 0.2
    assert growth.max() < 3.0, "no single step explains it"
    assert not np.isfinite(run.steps["loss"][-10:]).any()


def test_lr_zero(recorded):
    run = recorded("lr-zero", steps=60)
    lr = run.steps["lr"]
    assert (lr[:19] > 0).all()
    assert (lr[20:] == 0).all()
