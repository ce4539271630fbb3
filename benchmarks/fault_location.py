"""Where bisection puts each known fault: recorded, bisected and held against its right answer.

Every fault is recorded into a directory of its own, with a checkpoint every few steps; then it is
bisected through the public function, as ``forensics bisect`` does. An answer is right when the step
and the origin agree: the operator (or its autograd node, or the kind of fault), the module, and the
parameter among those listed as bad. Phase, reproduction and persistence are counted beside it.

Beside that, other tools, each alone with the same training: see ``fault_rivals``.

    python benchmarks/fault_location.py [--only entropy-log-zero …] [--unseen] [--what-if]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fault_answers import ALL, CONTROLS, FAULTS, Answer
from benchmarks.fault_rivals import Says, anomaly_mode, available, made
from benchmarks.measured import Goal, Result, Table
from forensics.diagnose.bisection_result import BisectionResult, BisectStatus
from forensics.errors import TrainingRaisedError
from forensics.record.recipe_lookup import split_reference
from forensics.record.reference_loop import RecordOptions, record_run
from forensics.replay.bisect import bisect_run
from forensics.runlog.run import load_run


@dataclass(frozen=True)
class Score:
    """One recording's marks; ``said`` is the bisection's answer in a few words."""

    step: bool
    origin: bool
    phase: bool
    reproduces: bool
    persistence: bool
    said: str

    @property
    def right(self) -> bool:
        """Step and origin agree."""
        return self.step and self.origin

    @property
    def whole(self) -> bool:
        """All of it agrees."""
        return self.right and self.phase and self.reproduces and self.persistence


def record(answer: Answer, out: Path, seed: int | None = None) -> None:
    """Record with at least two checkpoints before the bad step, where there are steps before it."""
    recipe = made(answer, seed)
    options = RecordOptions(
        out,
        checkpoint_every=max(2, answer.step // 5),
        keep="last:999",
        snapshot_every=0,
        extras=("param_digest",),
        recipe_file=split_reference(answer.recipe)[0],
    )
    with suppress(TrainingRaisedError):  # a fault of its own, recorded like any other
        record_run(recipe, recipe.config, options, say=lambda _: None)


def first_bad_row(out: Path) -> int:
    """The first row of a recording in which a number is not finite; -1 where there is none."""
    steps = load_run(out).steps
    bad = steps["norm_overflow"].astype(bool)
    for column in ("loss", "grad_l2_pre_clip"):
        bad |= steps.present(column) & ~np.isfinite(steps[column])
    return int(steps.step[bad][0]) if bad.any() else -1


def score(answer: Answer, result: BisectionResult) -> Score:
    """Hold one bisection against its answer."""
    origin, step = result.origin, result.first_bad_step
    said = f"{result.status}: step {step}"
    if origin is None:
        return Score(step == answer.step, False, False, False, False, f"{said}, no origin")
    names = {origin.operator, origin.autograd_node} & set(answer.operators)
    kinds = {str(origin.kind)} | ({"growth"} if result.growth is not None else set())
    names |= kinds & set(answer.operators)
    element = f"{origin.parameter}{origin.element}".replace(" ", "")
    listed = {origin.parameter, element, *origin.parameters}
    touched = answer.parameter in ("", ALL) or answer.parameter in listed
    return Score(
        step=step == answer.step,
        origin=bool(names) and origin.module == answer.module and touched,
        phase=origin.phase in answer.phase,
        reproduces=result.reproduces is answer.reproduces,
        persistence=result.persistence == answer.persistence,
        said=f"{said}, {origin.phase} {origin.operator}"
        f"{f' / {origin.autograd_node}' if origin.autograd_node else ''}"
        f" in {origin.module or '(root)'}, parameter {origin.parameter or '-'}"
        f"{origin.element}, {result.persistence}, reproduces {result.reproduces}",
    )


def findings_of(control: str, home: Path, what_if: bool) -> str:
    """What bisection says of a healthy run: empty where it finds nothing, as it should."""
    answer = Answer(recipe=control, step=10, phase=(), operators=())
    out = home / control.split(":")[-1]
    record(answer, out)
    recipe = control if split_reference(control)[0] else None
    result = bisect_run(out, recipe=recipe, what_if=what_if)
    if result.status is BisectStatus.HEALTHY and result.origin is None:
        return ""
    return score(answer, result).said + f" ({result.reason})"


def held_out() -> tuple[tuple[Answer, ...], tuple[str, ...]]:
    """The faults and the sound trainings that were written after the bisection."""
    from tests.faults_unseen.answers import FOURTH, NUMERICS, SOUND, THIRD, UNSEEN

    return UNSEEN + NUMERICS + THIRD + FOURTH, SOUND


ALARMS = "false alarms"
KINDS = ("right", "partly", "late", "early", "other exception", "silent")


def measure_all(quick: bool) -> Result:
    """For the page: what bisection and the other tools say of all faults and sound trainings."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    tools, notes = available()
    unseen, sound = held_out()
    sets = [(FAULTS, CONTROLS), (unseen, sound)]
    if quick:
        sets = [(faults[:2], controls[:1]) for faults, controls in sets]
    own, others, goals = [], [], []
    for faults, controls in sets:
        with tempfile.TemporaryDirectory() as folder:
            home = Path(folder)
            scores = []
            for answer in faults:
                out = home / answer.recipe.split(":")[-1]
                record(answer, out)
                scores.append(_one(answer, out, False))
            alarms = sum(bool(findings_of(control, home, False)) for control in controls)
        right = sum(marks.right for marks in scores)
        own.append((right, sum(marks.whole for marks in scores), alarms))
        goals.append(
            Goal(
                f"faults located in step and origin, of {len(faults)}",
                "all",
                str(right),
                right == len(faults),
            )
        )
        others.append({name: _tally(says, faults, controls) for name, says in tools.items()})
    head = ("", *(f"{len(faults)} faults, {len(sound)} sound" for faults, sound in sets))
    rows = [
        ("bisection: right in step and origin", *(str(one[0]) for one in own)),
        ("… in phase, return and persistence, too", *(str(one[1]) for one in own)),
        ("… a finding on a sound training", *(str(one[2]) for one in own)),
    ]
    for name in tools:
        told = (
            ", ".join(f"{n} {kind}" for kind, n in one[name].items() if n or kind == ALARMS)
            for one in others
        )
        rows.append((name, *told))
    return Result((Table(head, tuple(rows), tuple(notes)),), tuple(goals))


def _tally(says: Says, faults: Sequence[Answer], controls: Sequence[str]) -> dict[str, int]:
    """How often a tool said what of the faults, and how often anything of a sound training."""
    said = [says(answer, None) for answer in faults]
    found = {kind: sum(one.startswith(kind) for one in said) for kind in KINDS}
    sound = (Answer(recipe=name, step=-1, phase=(), operators=()) for name in controls)
    return {**found, ALARMS: sum(says(answer, None) != "silent" for answer in sound)}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table and the totals; exit 1 where an answer is wrong or a control alarmed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], help="parts of recipe names")
    parser.add_argument("--unseen", action="store_true", help="the held-out recipes of the tests")
    parser.add_argument("--seed", type=int, help="another seed (steps of growth faults move)")
    parser.add_argument(
        "--what-if", action="store_true", help="try changes, too, which takes longer"
    )
    parser.add_argument("--no-anomaly", action="store_true", help="leave anomaly mode out")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    answers: Sequence[Answer] = FAULTS
    controls: Sequence[str] = CONTROLS
    if given.unseen:
        answers, controls = held_out()
    answers = [a for a in answers if _wanted(a.recipe, given.only)]
    controls = [c for c in controls if _wanted(c, given.only)]
    with tempfile.TemporaryDirectory() as home:
        return _run(answers, controls, Path(home), given)


def _wanted(name: str, only: Sequence[str]) -> bool:
    return not only or any(part in name for part in only)


def _run(
    answers: Sequence[Answer], controls: Sequence[str], home: Path, given: argparse.Namespace
) -> int:
    scores: list[Score] = []
    anomalies: list[str] = []
    for answer in answers:
        name = answer.recipe.split(":")[-1]
        record(answer, home / name, given.seed)
        if given.seed is not None and answer.by_chance:
            answer = replace(answer, step=first_bad_row(home / name))
            if answer.step < 0:
                print(f"{name:26} did not strike with this seed")
                continue
        scores.append(_one(answer, home / name, given.what_if))
        anomalies.append("" if given.no_anomaly else anomaly_mode(answer, given.seed))
        _print_row(name, answer, scores[-1], anomalies[-1])
    alarms = {c: said for c in controls if (said := findings_of(c, home, given.what_if))}
    for control, said in alarms.items():
        print(f"ALARM {control.split(':')[-1]}: {said}")
    _print_totals(scores, anomalies, len(controls), len(alarms))
    return int(bool(alarms) or not all(s.right for s in scores))


def _one(answer: Answer, out: Path, what_if: bool) -> Score:
    recipe = answer.recipe if split_reference(answer.recipe)[0] else None
    began = time.perf_counter()
    try:
        result = bisect_run(out, recipe=recipe, what_if=what_if)
    except Exception as error:  # noqa: BLE001 - one that crashes is one that is wrong
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        where = f"{Path(last.tb_frame.f_code.co_filename).name}:{last.tb_lineno}" if last else ""
        said = f"CRASHED {type(error).__name__}: {error} ({where})"
        return Score(False, False, False, False, False, said)
    marks = score(answer, result)
    return replace(marks, said=f"{marks.said} [{time.perf_counter() - began:.1f} s]")


def _print_row(name: str, answer: Answer, marks: Score, anomaly: str) -> None:
    flags = [marks.step, marks.origin, marks.phase, marks.reproduces, marks.persistence]
    letters = "".join(letter if flag else "." for letter, flag in zip("SOFRP", flags, strict=True))
    verdict = "right" if marks.right else "WRONG"
    print(f"{name:26} {verdict} {letters}  {marks.said}   | anomaly: {anomaly}", flush=True)
    if not (marks.right and all(flags)):
        expected = (
            f"step {answer.step}, {'|'.join(answer.phase)} {'|'.join(answer.operators)}"
            f" in {answer.module or '(root)'}, parameter {answer.parameter or '-'}"
            f", {answer.persistence}, reproduces {answer.reproduces}"
        )
        print(f"{'':26} expected: {expected}", flush=True)


def _print_totals(
    scores: Sequence[Score], anomalies: Sequence[str], controls: int, alarms: int
) -> None:
    count = len(scores)
    print(f"\nright in step and origin: {sum(s.right for s in scores)} of {count}")
    for part in ("step", "origin", "phase", "reproduces", "persistence"):
        print(f"  {part}: {sum(getattr(s, part) for s in scores)} of {count}")
    print(f"controls with a finding: {alarms} of {controls}")
    if not any(anomalies):
        return
    told = [f"{sum(a.startswith(k) for a in anomalies)} {k}" for k in KINDS]
    print(f"anomaly mode alone: {', '.join(told)}")


if __name__ == "__main__":
    sys.exit(main())
