"""The held-out recipes do what their answers say, as far as a log can show it."""

from dataclasses import replace

import numpy as np
import pytest

from forensics.record.recipe_lookup import find_recipe
from forensics.record.reference_loop import RecordOptions, record_run
from forensics.runlog.run import load_run
from tests.faults_unseen.answers import FOURTH, SOUND, UNSEEN

SHOWN_IN = {
    "gpt-empty-sequence": "loss",
    "gpt-hand-softmax": "loss",
    "lstm-empty-mask": "loss",
    "lstm-root-penalty": "grad_l2_pre_clip",
    "cnn-acos-at-one": "grad_l2_pre_clip",
    "cnn-nan-pixel": "loss",
    "rate-inf": "lr",
    "momentum-lr-too-high": "loss",
    "bias-rate-nan": "lr_1",
    "smoothed-over-a-mask": "loss",
    "too-short-for-its-target": "loss",
}
"""The column in which the bad step is the first that is not finite; the others are silent."""


@pytest.mark.parametrize("answer", UNSEEN + FOURTH, ids=lambda answer: answer.recipe.split(":")[-1])
def test_the_log_turns_bad_at_the_step(tmp_path, answer):
    recipe = find_recipe(answer.recipe)
    config = replace(recipe.defaults, device="cpu")
    config = replace(config, steps=min(config.steps, answer.step + 4))
    options = RecordOptions(tmp_path / "run", checkpoint_every=0, snapshot_every=0)
    record_run(recipe(config), config, options, say=lambda _: None)
    steps = load_run(tmp_path / "run").steps
    assert len(steps) == config.steps
    for column in ("loss", "grad_l2_pre_clip", "lr", "lr_1"):
        if column not in steps:
            continue
        bad = steps.step[steps.present(column) & ~np.isfinite(steps[column])].tolist()
        if SHOWN_IN.get(recipe.name) == column:
            assert bad[0] == answer.step
        else:
            assert all(step >= answer.step for step in bad)
    if recipe.name not in SHOWN_IN:
        assert np.isfinite(steps["loss"]).all()


@pytest.mark.parametrize("reference", SOUND, ids=lambda reference: reference.split(":")[-1])
def test_the_sound_ones_end_well(tmp_path, reference):
    recipe = find_recipe(reference)
    config = replace(recipe.defaults, device="cpu", steps=8)
    options = RecordOptions(tmp_path / "run", checkpoint_every=0, snapshot_every=0)
    record_run(recipe(config), config, options, say=lambda _: None)
    steps = load_run(tmp_path / "run").steps
    assert np.isfinite(steps["loss"]).all()
    assert not steps["skipped"].all()
