"""``forensics bisect``: to the first bad step, operator and sample of a run, with the proof."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forensics.cli.bisect_progress import bisection_progress
from forensics.cli.output_options import look, output_options, put, spare_the_input
from forensics.cli.streams import say, write_stdout
from forensics.cli.torch_start import import_torch, without_torch
from forensics.diagnose.finding import Severity
from forensics.errors import ExitCode, ForensicsError, OutputError
from forensics.render.output import choose_format
from forensics.settings import SEVERITIES

if TYPE_CHECKING:
    from forensics.diagnose.bisection_result import BisectionResult


def _a_number(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Refuse NaN, which is outside no range."""
    if value is not None and value != value:
        raise click.BadParameter("NaN is no tolerance", ctx, param)
    return value


@click.command(short_help="Find the first bad step, its operator and sample, and prove it.")
@click.argument("run", required=False, metavar="[RUN]", type=click.Path())
@click.option(
    "--ckpt-dir",
    metavar="DIR",
    type=click.Path(),
    help="RUN/checkpoints, or any folder of saved states.",
)
@click.option(
    "--recipe",
    metavar="RECIPE",
    help="What trains it, such as my_train.py:my_recipe, or a function that makes a trainer. "
    "A file is loaded only if named here.",
)
@click.option(
    "--bad",
    metavar="CONDITION",
    help="nonfinite (default), 'loss>10', 'norm>100', skipped, 'scale<1' …",
)
@click.option("--from", "from_step", metavar="STEP", type=click.IntRange(min=0), help="Not before.")
@click.option(
    "--until", "until_step", metavar="STEP", type=click.IntRange(min=0), help="Not after."
)
@click.option(
    "--what-if/--no-what-if", default=True, help="Try what makes it go away. Default: do."
)
@click.option(
    "--further-steps",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Steps that each change is tried for.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, max=1),
    callback=_a_number,
    metavar="X",
    help="Relative difference at which a replayed row is still the recorded one.",
)
@click.option("--device", help="cpu, cuda, cuda:1 or mps. Default: as recorded.")
@click.option(
    "--capsule",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write the smallest thing that reproduces it here.",
)
@click.option("--overwrite", is_flag=True, help="Replace the capsule that is there.")
@output_options
@click.option(
    "--fail-on",
    type=click.Choice(SEVERITIES),
    help="Exit 1 on a bad step this severe or worse. Default: never.",
)
def bisect(
    run: str | None,
    ckpt_dir: str | None,
    form: str | None,
    out: Path | None,
    fail_on: str | None,
    **options: Any,
) -> ExitCode:
    """Find the first bad step, its operator and sample, and prove it.

    RUN is a run directory. The log narrows the range, saved states are tested, the run is trained
    again up to the bad step, and that step is traced operator by operator and proven by replays.
    Without a recipe the saved states are judged by their health alone. A run of N ranks is
    replayed by one process, rank by rank, or by as many under
    `torchrun --nproc-per-node N -m forensics bisect RUN`.

    \b
    Examples:
      forensics bisect --ckpt-dir runs/x/checkpoints
      forensics bisect runs/x --bad 'loss>10' --no-what-if
      forensics bisect runs/x --recipe my_train.py:my_recipe --capsule out
      forensics bisect --ckpt-dir some/saved/states

    Exit code: 0 done, 1 a bad step as severe as --fail-on says (critical where it persists, else
    error), 2 wrong usage or nothing readable,
    130 interrupted, or 143 terminated, with the answer as far as it goes.
    """
    path = _path(run, ckpt_dir)
    if find_spec("torch") is None:
        raise without_torch("bisecting")
    import_torch()
    from forensics.record.ranks.world import launched
    from forensics.replay.bisect import bisect_run

    with launched(_device(path, options["device"]), "bisect RUN") as world:
        if not world.leads:
            return _follow(path, options)
        spare_the_input(out, (path,))
        with bisection_progress() as progress:
            result = bisect_run(path, progress=progress, **options)
        _put(result, choose_format(form, out), out)
    return _exit_code(result, fail_on)


def _put(result: BisectionResult, form: str, out: Path | None) -> None:
    """Write the answer; where ``--out`` does not take it, print it: it took minutes to get."""
    try:
        put(_rendered(result, form, out), out)
    except OutputError:
        if out is not None:
            write_stdout(_rendered(result, form, None))
        raise


def _follow(path: str, options: dict[str, Any]) -> ExitCode:
    """Another rank than 0: it replays its share and says nothing, unless rank 0 no longer can."""
    from forensics.replay.bisect import bisect_run
    from forensics.replay.ranks.exchange import RankLostError

    try:
        bisect_run(path, **options)
    except RankLostError:
        say("another rank of the replay has ended, so this one ends, too")
        return ExitCode.INTERRUPTED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except ForensicsError as error:  # rank 0's, which tells it
        return error.exit_code
    return ExitCode.DONE


def _device(path: str, wanted: str | None) -> str:
    """The kind of device that the ranks of a launcher replay on, where there is a launcher."""
    if "WORLD_SIZE" not in os.environ:
        return "cpu"
    import torch

    from forensics.runlog.run import load_run

    if wanted is None:
        with suppress(ForensicsError):
            manifest = load_run(path).manifest
            wanted = None if manifest is None else manifest.device
    on_gpu = (wanted or "").startswith("cuda") and torch.cuda.is_available()
    return "cuda" if on_gpu else "cpu"


def _exit_code(result: BisectionResult, fail_on: str | None) -> ExitCode:
    from forensics.diagnose.bisection_result import BisectStatus
    from forensics.diagnose.located import finding_of

    if result.status is BisectStatus.PARTIAL:
        return ExitCode.TERMINATED if result.terminated else ExitCode.INTERRUPTED
    finding = finding_of(result)
    if finding is None or fail_on is None:
        return ExitCode.DONE
    return ExitCode.FINDINGS if finding.severity >= Severity[fail_on.upper()] else ExitCode.DONE


def _path(run: str | None, ckpt_dir: str | None) -> str:
    """The one of the two that was given."""
    if (run is None) == (ckpt_dir is None):
        raise click.UsageError("name a RUN or a --ckpt-dir, one of them")
    chosen = run if ckpt_dir is None else ckpt_dir
    assert chosen is not None
    return chosen


def _rendered(result: BisectionResult, form: str, out: Path | None) -> str:
    if form == "json":
        from forensics.render.bisect_json import render_bisect_json

        return render_bisect_json(result)
    if form == "markdown":
        from forensics.render.bisect_markdown import render_bisect_markdown

        return render_bisect_markdown(result)
    from forensics.render.bisect_text import render_bisect_text

    return render_bisect_text(result, **look(out))
