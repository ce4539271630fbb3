import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.diagnose.schedule import Phase, dated, jumps, rate_state, warmup_rows
from forensics.runlog.manifest import Manifest
from tests.unit.diagnose.healthy import signals_of, warmup_cosine


def rows_of(lr: np.ndarray) -> int:
    return warmup_rows(signals_of({"lr": lr}))


@given(st.integers(3, 2_000), st.integers(100, 3_000))
def test_a_linear_warm_up_is_found_to_the_row(warm: int, after: int) -> None:
    rising = 1e-3 * (np.arange(warm) + 1) / warm
    assert rows_of(np.append(rising, np.full(after, 1e-3))) == warm - 1
    assert rows_of(np.append(rising, 1e-3 * np.linspace(1, 0, after))) == warm - 1


def test_skips_in_the_warm_up_do_not_end_it() -> None:
    rising = np.append(np.full(16, 1e-6), 1e-3 * (np.arange(500) + 1) / 500)
    assert rows_of(np.append(rising, np.full(500, 1e-3))) == 515


@pytest.mark.parametrize(
    "lr",
    [
        np.full(500, 1e-3),
        np.linspace(1e-3, 0, 500),
        np.where(np.arange(2_000) < 900, 1e-4, 1e-2),
        np.full(500, np.nan),
        np.empty(0),
    ],
)
def test_no_warm_up_is_seen_where_none_is(lr: np.ndarray) -> None:
    assert rows_of(lr) == 0


def test_a_later_jump_does_not_move_it() -> None:
    lr = warmup_cosine(4_000)
    lr[3_000:] *= 100
    assert rows_of(lr) == rows_of(warmup_cosine(4_000)) == 199


def test_run_json_is_believed_first() -> None:
    signals = signals_of({"lr": np.full(500, 1e-3)}, Manifest(schedule={"warmup_steps": 120}))
    assert warmup_rows(signals) == 120


@pytest.mark.parametrize(
    ("row", "phase"),
    [(50, Phase.WARMING_UP), (205, Phase.AT_PEAK), (1_500, Phase.MOVING), (3_010, Phase.JUMPED)],
)
def test_the_state_of_the_rate_is_told(row: int, phase: Phase) -> None:
    lr = warmup_cosine(4_000)
    lr[3_000:] *= 10
    assert rate_state(signals_of({"lr": lr}), row).phase is phase


def test_special_rates_have_their_own_state() -> None:
    signals = signals_of({"lr": np.array([1e-3, np.nan, 0.0])})
    assert rate_state(signals, 1).phase is Phase.NONFINITE
    assert rate_state(signals, 2).phase is Phase.ZERO
    assert rate_state(signals_of({"loss": np.ones(3)}), 1).text == ""
    calm = rate_state(signals_of({"lr": np.full(300, 3e-4)}), 200)
    assert calm.calm
    assert calm.text == "the learning rate was calm at 0.0003"


def test_what_a_jump_follows_closely_it_dates() -> None:
    signals = signals_of({"lr": np.where(np.arange(500) < 250, 1e-4, 1e-3)})
    assert jumps(signals).tolist() == [250]
    assert dated(signals, 245) == 250
    assert dated(signals, 250) == 250
    assert dated(signals, 251) == 251
    assert dated(signals, 200) == 200


def test_groups_with_rates_of_their_own_are_told_of() -> None:
    calm = np.full(500, 1e-3)
    told = rate_state(signals_of({"lr": calm, "lr_1": calm, "lr_2": 5 * calm}), 300)
    assert told.text == "the learning rate was calm at 0.001 in the first group, 0.005 in group 2"
    assert told.phase is Phase.CONSTANT
    alike = rate_state(signals_of({"lr": calm, "lr_1": calm}), 300)
    assert alike.text == "the learning rate was calm at 0.001"


def test_a_jump_of_another_group_is_told_before_the_calm_of_the_first() -> None:
    calm = np.full(500, 1e-3)
    jumping = np.where(np.arange(500) < 290, 1e-3, 1e-2)
    signals = signals_of({"lr": calm, "lr_1": calm, "lr_2": jumping})
    told = rate_state(signals, 300)
    assert told.phase is Phase.JUMPED
    assert told.text == "the learning rate of group 2 had jumped ×10 at step 290"
    assert rate_state(signals, 400).phase is Phase.CONSTANT
