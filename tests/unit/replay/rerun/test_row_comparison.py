"""What of a recorded row a replayed one must repeat."""

import math

from forensics.record.step_log import StepLog
from forensics.replay.rerun.row_comparison import compare_rows, whatever_the_loop_did


def test_what_a_loop_does_with_a_bad_step_is_its_own() -> None:
    sound = {"loss": 1.0, "grad_l2_pre_clip": 2.0, "skipped": 0.0}
    assert whatever_the_loop_did(sound) == sound
    bad = {"loss": 1.0, "grad_l2_pre_clip": math.nan, "skipped": 0.0, "lr": 0.1}
    assert whatever_the_loop_did(bad) == {"loss": 1.0, "lr": 0.1}
    assert whatever_the_loop_did({"loss": math.inf, "skipped": 1.0}).keys() == {"loss"}


def test_a_norm_that_was_recorded_and_is_not_replayed_is_a_departure() -> None:
    row = {"loss": 1.0, "grad_l2_pre_clip": 2.0}
    log = StepLog(
        step=3,
        lrs=(0.1,),
        loss=1.0,
        scaler_scale=1.0,
        grad_l2_pre_clip=None,
        grad_l2_post_clip=None,
    )
    gone = compare_rows(row, log, "", 0.0)
    assert gone is not None
    assert (gone.step, gone.column, gone.recorded, gone.replayed) == (
        3,
        "grad_l2_pre_clip",
        2.0,
        None,
    )
