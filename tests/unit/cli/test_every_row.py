"""Verbs that owe every row of a long log leave none out."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from forensics.cli import main
from forensics.runlog.reading import Reading
from forensics.runlog.run import Run, load_run


@pytest.mark.parametrize("verb", ["convert", "compare"])
def test_verbs_that_owe_every_row_leave_none_out(
    verb: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "it.log"
    path.write_bytes(b"".join(b"s:%d trl:2.5 lr:0.1 norm:1.2\n" % n for n in range(30)))
    asked: list[int | None] = []

    def loaded(source: Path, reading: Reading) -> Run:
        asked.append(reading.most_rows)
        return load_run(source, reading)

    module = importlib.import_module(f"forensics.cli.{verb}")
    monkeypatch.setattr(sys.modules[module.__name__], "load_run", loaded)
    rest = ["--out", str(tmp_path / "steps.csv")] if verb == "convert" else [str(path)]
    assert main([verb, str(path), *rest]) == 0
    assert set(asked) == {None}
