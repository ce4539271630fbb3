"""A misspelt path gets the one that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.errors import InputError
from forensics.runlog.meant import no_such
from forensics.runlog.run import load_joined, load_run


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("runs/helthy", "runs/healthy"),
        ("rnus/healthy", "runs/healthy"),
        ("runz/helthy/", "runs/healthy"),
        ("runs/with blnk", "'runs/with blank'"),
        ("runs/nothing-alike", None),
        ("elsewhere/healthy", None),
        ("s3:/bucket/x", "s3://bucket/x"),
        ("HTTPS://host/x", "HTTPS://host/x"),
        ("c3:/bucket/x", None),
    ],
)
def test_the_path_that_is_spelled_alike(
    given: str, meant: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs/healthy").mkdir(parents=True)
    (tmp_path / "runs/with blank").mkdir()
    monkeypatch.chdir(tmp_path)
    hint = no_such(Path(given)).hint
    assert hint == (None if meant is None else f"did you mean {meant}?")


def test_every_way_to_load_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("x")
    wrong = tmp_path / "trian.log"
    for load in (load_run, lambda path: load_joined([path])):
        with pytest.raises(InputError, match=r"did you mean .*train\.log"):
            load(wrong)


def test_a_directory_of_runs_is_for_a_scan(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/run.json").write_text("{}")
    with pytest.raises(InputError, match=r"`forensics scan .*` judges all"):
        load_run(tmp_path)
