"""Losses of reinforcement learning measure no progress; those of preferences do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Outcome, Severity
from forensics.diagnose.reward_driven import WHY, WHY_IN_TURN
from forensics.runlog.manifest import Manifest
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable

ROWS = 400
Columns = dict[str, np.ndarray]


def run_of(columns: Columns) -> Run:
    step = np.arange(1, len(columns["loss"]) + 1)
    return Run(path=Path("run"), steps=StepTable.from_arrays({"step": step, **columns}))


def grpo(loss: np.ndarray, **more: np.ndarray) -> Columns:
    noise = np.random.default_rng(3)
    norm = 0.3 * np.exp(0.5 * noise.normal(size=len(loss)))
    reward = np.linspace(0.3, 0.7, len(loss))
    return {"loss": loss, "grad_l2_pre_clip": norm, "reward": reward, **more}


def from_zero() -> np.ndarray:
    """The loss of GRPO: a coefficient times a divergence that grows from 0."""
    noise = np.random.default_rng(1).normal(size=ROWS)
    return 4e-5 * np.arange(ROWS) * (1 + 0.2 * noise)


def serious(columns: Columns) -> dict[str, Severity]:
    found = diagnose(run_of(columns)).findings
    return {f.rule: f.severity for f in found if f.severity >= Severity.WARNING}


@pytest.mark.parametrize(
    "name", ["reward", "train/reward", "rewards/format/mean", "rollout/ep_rew_mean"]
)
def test_a_loss_that_rises_beside_a_reward_is_no_divergence(name: str) -> None:
    columns = grpo(from_zero())
    columns[name] = columns.pop("reward")
    assert serious(columns) == {}
    outcomes = {o.rule: o for o in diagnose(run_of(columns)).rules}
    for rule in ("loss-divergence", "loss-plateau"):
        assert outcomes[rule].outcome is Outcome.SKIPPED
        assert outcomes[rule].reason == WHY


def test_the_report_says_that_the_loss_was_not_judged() -> None:
    undecided = diagnose(run_of(grpo(from_zero()))).verdict.undecided
    assert any("measures no progress" in line for line in undecided)


@pytest.mark.parametrize("name", ["val/reward", "eval_reward", "forward"])
def test_the_same_loss_without_rewards_of_training_is_one(name: str) -> None:
    columns = grpo(from_zero() + 1e-3)
    columns[name] = columns.pop("reward")
    assert "loss-divergence" in serious(columns)


def test_a_preference_loss_is_judged_like_any_other() -> None:
    loss = np.concatenate((np.linspace(0.7, 0.3, ROWS // 2), np.linspace(0.3, 2.0, ROWS // 2)))
    margins = {name: np.zeros(ROWS) for name in ("rewards/chosen", "rewards/rejected")}
    assert "loss-divergence" in serious(grpo(loss, **margins))


def test_a_loss_that_blows_up_is_told_beside_a_reward_too() -> None:
    loss = np.random.default_rng(2).normal(scale=0.02, size=ROWS)
    loss[300:] = 10.0 ** np.linspace(0, 6, 100)
    assert "loss-divergence" in serious(grpo(loss))


def test_nan_is_nan_beside_a_reward_too() -> None:
    loss = from_zero()
    loss[200:] = np.nan
    assert "nonfinite-loss" in serious(grpo(loss))


def of_two_players(loss: np.ndarray, in_turn: int) -> Run:
    norm = 10 * np.exp(0.1 * np.random.default_rng(3).normal(size=len(loss)))
    columns = {"step": np.arange(len(loss)), "loss": loss, "grad_l2_pre_clip": norm}
    loop = {"in_turn_steps": in_turn, "first_in_turn": 0}
    table = StepTable.from_arrays(columns)
    return Run(path=Path("run"), steps=table, manifest=Manifest(loop=loop))


def generators() -> np.ndarray:
    """A generator's loss while its discriminator learns: 0.6 to 5."""
    noise = np.random.default_rng(2).normal(size=ROWS)
    return 0.6 + 4.4 * np.sqrt(np.arange(ROWS) / ROWS) * (1 + 0.05 * noise)


class TestPlayers:
    def test_one_whose_loss_rises_is_not_diverging(self):
        diagnosis = diagnose(of_two_players(generators(), ROWS))
        assert not [f.rule for f in diagnosis.findings if f.severity >= Severity.WARNING]
        (divergence,) = (o for o in diagnosis.rules if o.rule == "loss-divergence")
        assert (divergence.outcome, divergence.reason) == (Outcome.SKIPPED, WHY_IN_TURN)
        assert any("GAN" in text for text in diagnosis.verdict.undecided)

    def test_one_that_blows_up_is(self):
        loss = generators() * np.where(np.arange(ROWS) > 300, 1e4, 1)
        found = diagnose(of_two_players(loss, ROWS)).findings
        assert any(f.rule == "loss-divergence" and f.severity is Severity.ERROR for f in found)

    def test_other_losses_now_and_then_make_no_players(self):
        found = diagnose(of_two_players(generators(), ROWS // 20)).findings
        assert any(f.rule == "loss-divergence" and f.severity is Severity.ERROR for f in found)


def test_a_bad_gradient_beside_one_loss_of_several_is_not_said_to_be_born_in_backward():
    loss = np.full(ROWS, 1.0)
    norm = np.where(np.arange(ROWS) == 200, np.nan, 0.5)
    columns = {"step": np.arange(ROWS), "loss": loss, "grad_l2_pre_clip": norm}
    for counted, told in ((ROWS, "micro-batch"), (0, "Born in backward")):
        manifest = Manifest(precision="fp32", loop={"one_loss_steps": counted} if counted else {})
        run = Run(path=Path("run"), steps=StepTable.from_arrays(columns), manifest=manifest)
        (found,) = (f for f in diagnose(run).findings if f.rule == "nonfinite-gradient")
        assert told in found.cause
