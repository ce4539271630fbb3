"""``python -m tests.corpus.score``: hold the diagnosis to the corpus, and print how it fares."""

from __future__ import annotations

import argparse
import fnmatch
import re
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.corpus.case import Expect
from tests.corpus.scoring import SEEDS, Judgement, Score, corpora, judge, make


def score(seeds: Iterable[int], only: str = "*", jobs: int = 1) -> Score:
    """Judge every case of the corpus whose name matches, at every seed."""
    healthy, faulty = corpora()
    names = [n for n in (*healthy.makers, *faulty.makers) if fnmatch.fnmatch(n, only)]
    work = [(name, seed) for seed in seeds for name in names]
    if jobs == 1:
        return Score([_judged(one) for one in work])
    with ProcessPoolExecutor(jobs) as pool:
        return Score(list(pool.map(_judged, work, chunksize=8)))


def _judged(one: tuple[str, int]) -> Judgement:
    try:
        return judge(make(*one))
    except Exception as error:  # noqa: BLE001 - one case that crashes must not hide the others
        faulty = one[0] in corpora()[1].makers
        told = f"crashed: {type(error).__name__}: {str(error)[:100]}"
        return Judgement(*one, faulty, status=False, root=False, step=False, problems=(told,))


def table(result: Score) -> str:
    """The figures as Markdown."""
    healthy, faulty = result.of(False), result.of(True)
    lines = [
        f"{len(healthy)} healthy logs: {result.healthy_with_alarm} with an alarm.",
        f"{len(faulty)} faulty logs: planted findings at the right step {result.found:.1%}; "
        f"verdict: status {result.share('status'):.1%}, root {result.share('root'):.1%}, "
        f"root and step {result.share('step'):.1%}; "
        f"logs with a false alarm {sum(bool(j.alarms) for j in faulty)}.",
        "",
        "| rule | right step | wrong step | missed | alarms on healthy | alarms on faulty |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for rule, counts in result.by_rule().items():
        cells = (counts[k] for k in ("hit", "wrong-step", "missed", "healthy", "faulty"))
        lines.append(f"| {rule} | {' | '.join(str(c) if c else '–' for c in cells)} |")
    return "\n".join(lines)


def failures(result: Score) -> str:
    """Every case with a problem, as Markdown."""
    lines = []
    for one in result.failures:
        kind = "faulty" if one.faulty else "healthy"
        lines.append(f"- **{one.name}** seed {one.seed} ({kind}; said {one.said})")
        lines += [f"    - {problem}" for problem in one.problems]
    return "\n".join(lines) or "none"


def show(name: str, seed: int) -> str:
    """A case's label, its text report, and what is not right about it."""
    from forensics.diagnose.engine import diagnose
    from forensics.render.text_report import render_text

    case = make(name, seed)
    diagnosis = diagnose(case.run)
    label = [f"root {_expected(e)}" for e in case.label.roots]
    label += [f"must {_expected(e)}" for e in case.label.must]
    label.append(f"verdict {' or '.join(case.label.status)}")
    report = render_text(diagnosis, width=100, verbose=True)
    problems = judge(case, diagnosis).problems or ("none",)
    return "\n".join(("LABEL", *label, "", report, "PROBLEMS", *problems))


def _expected(expect: Expect) -> str:
    """``loss-spike @ 919 ± 2``, with the last step allowed and the subject where there are any."""
    where = "" if expect.step is None else f" @ {expect.step} ± {expect.slack}"
    until = "" if expect.upto is None else f" or up to {expect.upto}"
    return f"{expect.rule}{where}{until} {expect.subject}".rstrip()


def _seeds(text: str) -> Iterable[int]:
    if text in SEEDS:
        return SEEDS[text]
    match = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    if not match:
        raise SystemExit(f"--seeds {text}: tune, test, N or N..M")
    first = int(match[1])
    return range(first, int(match[2] or first) + 1)


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus.score", description=__doc__)
    parser.add_argument("--seeds", default="test", help="tune, test, N or N..M (default: test)")
    parser.add_argument("--only", default="*", help="cases whose name matches, such as 'fp16-*'")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--verbose", action="store_true", help="list every case with a problem")
    parser.add_argument("--show", nargs=2, metavar=("CASE", "SEED"), help="one case in full")
    parser.add_argument(
        "--write", nargs=3, metavar=("CASE", "SEED", "DIR"), help="write a case as a run directory"
    )
    options = parser.parse_args(arguments)
    if options.show:
        print(show(options.show[0], int(options.show[1])))
        return 0
    if options.write:
        from tests.corpus.write import write

        name, seed, target = options.write
        print(write(make(name, int(seed)), Path(target)))
        return 0
    result = score(_seeds(options.seeds), options.only, options.jobs)
    print(table(result))
    if options.verbose:
        print("\n" + failures(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
