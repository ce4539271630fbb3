"""A full disk costs the record what did not fit, says so, and nothing else.

A child mounts a small disk of its own for one part of the run, or for all of it. Where the system
lets nobody mount, ``tests/integration/test_recording.py`` still limits the size of each file.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forensics.cli import main
from forensics.record.checkpoints import load_checkpoint
from forensics.runlog.activations import ActivationStore
from forensics.runlog.params import ParamStore
from forensics.runlog.run import load_run
from tests.fire.amount import FULL
from tests.fire.fork_server import ForkServer
from tests.fire.starving import PAGE, record_starved, write_starved
from tests.fire.test_kill import Rows, all_rows, rows
from tests.fire.training import record

STEPS = 40
PARTS = (".", "params", "activations", "checkpoints")
SIZES = (2, 4, 8, 11, 16, 21, 34, 50)
"""Pages of the small disks: from no room for a thing to room for nearly all."""
SMALL = [(".", 4), (".", 11), (".", 34), ("params", 4), ("activations", 2), ("checkpoints", 11)]
CASES = [(part, size) for part in PARTS for size in SIZES] if FULL else SMALL


@pytest.fixture(scope="module")
def truth(forks: ForkServer, fast_place: Path) -> Rows:
    """The rows of a run with room."""
    run = fast_place / "whole"
    child = forks.start(record, run, {"steps": STEPS}, said=fast_place / "said")
    assert child.wait() == 0, child.text()
    return rows(run)


@pytest.mark.usefixtures("mounts")
@pytest.mark.parametrize(("part", "pages"), CASES)
def test_training_goes_on_and_says_what_is_lost(
    part: str,
    pages: int,
    forks: ForkServer,
    truth: Rows,
    fast_place: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = fast_place / f"{part}-{pages}".replace(".", "run")
    place.mkdir()
    given = (place / "run", part, pages * PAGE, {"steps": STEPS}, place)
    child = forks.start(record_starved, *given, said=place / "said")
    assert child.wait() == 0, child.text()
    starved, resumed = (load_run(place / name) for name in ("starved", "resumed"))

    # The training went on to its end, and what it lost is in run.json and in the report.
    assert starved.manifest is not None
    assert starved.manifest.ended is not None
    assert (starved.manifest.ended.how, starved.manifest.ended.step) == ("finished", STEPS - 1)
    here = rows(place / "starved")
    assert all(truth[step] == row for step, row in here.items())
    lost = {clause.partition(":")[0] for clause in starved.manifest.missing}
    assert ("steps.csv" in lost) == (len(here) < STEPS)
    for kind in lost:
        assert child.text().count(f": {kind} cannot be written (No space left on device)") >= 1
    main(["report", str(place / "starved"), "--format", "json"])
    (told,) = json.loads(capsys.readouterr().out)["reports"]
    assert told["run"]["missing"] == list(starved.manifest.missing)
    assert told["verdict"]["status"] != "healthy" or "steps.csv" not in lost

    # What was there stays readable, and is what it should be.
    check_readable(place / "starved")
    assert not list((place / "starved").rglob("*.tmp"))

    # A resume without room loses none of it; with room the run is whole again.
    assert here.keys() <= all_rows(place / "again").keys()
    check_readable(place / "again")
    if "steps.csv" not in lost and resumed.checkpoints:
        assert rows(place / "resumed") == truth
        assert not [c for c in resumed.manifest.missing if c.startswith("steps")]  # type: ignore[union-attr]


def check_readable(run: Path) -> None:
    """Every part that has a final name can be read whole."""
    found = load_run(run)
    for info in found.checkpoints:
        assert load_checkpoint(info.path)["step"] == info.step
        assert info.health["step"] == info.step
    for store in (ParamStore(run / "params"), ActivationStore(run / "activations")):
        assert list(store.steps) == sorted(store.steps)
        assert not [repair for repair in store.repairs if repair.kind != "torn-snapshots"]
    assert not [repair for repair in found.steps.repairs if repair.lossy]


@pytest.mark.usefixtures("mounts")
def test_an_output_that_does_not_fit_leaves_the_old_one(
    forks: ForkServer, fast_place: Path
) -> None:
    run = fast_place / "read"
    child = forks.start(record, run, {"steps": 12}, said=fast_place / "read.said")
    assert child.wait() == 0, child.text()
    child = forks.start(
        write_starved, run, fast_place / "outputs", said=fast_place / "outputs.said"
    )
    assert child.wait() == 0, child.text()
    found = json.loads((fast_place / "outputs.json").read_text())
    assert len(found) == 10
    for verb, (code, said, left) in found.items():
        assert code == 2, (verb, said)
        (line,) = said.splitlines()
        assert "No space left on device" in line, verb
        assert "choose another --out" in line, verb
        assert left == {"document": "old"}, verb
