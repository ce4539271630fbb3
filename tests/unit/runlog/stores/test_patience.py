"""A word where a store lets somebody wait."""

from __future__ import annotations

import time

import pytest

from forensics.runlog.stores.patience import Patience

SECONDS = 0.08


def test_who_waits_long_is_told_so_once_and_whoever_does_not_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    patience = Patience(SECONDS)
    with patience.asked("s3://quick/x"):
        assert patience.waits()
    assert not patience.waits()
    for _ in range(2):
        with patience.asked("https://me:hunter2@host/x"):
            deadline = time.monotonic() + 5
            while not caplog.records and time.monotonic() < deadline:
                time.sleep(SECONDS / 8)
    (record,) = caplog.records
    told = record.getMessage()
    assert told == "forensics: https://…@host/x: no end of reading after 0.08 s; Ctrl-C ends it"
