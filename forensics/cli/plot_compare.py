"""``forensics plot-compare``: two runs over each other."""

from __future__ import annotations

from pathlib import Path

import click

from forensics.cli.plot_options import picture_of, plot_options, prepare, put_figure, put_terminal
from forensics.cli.reading_options import reading_of, reading_options
from forensics.cli.two_runs import two_runs
from forensics.diagnose.chart_series import chart_series
from forensics.diagnose.comparison import compare
from forensics.errors import ExitCode
from forensics.render.compare_plot import draw_compare
from forensics.runlog.run import load_run


@click.command("plot-compare", short_help="Draw two runs over each other, and where they part.")
@two_runs
@plot_options
@reading_options
def plot_compare(
    run_a: str,
    run_b: str,
    rtol: float,
    out: Path | None,
    show: bool,
    format_in: str,
    mapping: tuple[str, ...],
) -> ExitCode:
    """Draw two runs over each other, and where they part.

    In each panel a line marks the first step at which they differ, another where they differ by
    more than 1 %. By default the picture goes beside RUN_A. A RUN is what `report` takes, a log of
    another program too; --map and --format-in hold for both.

    \b
    Examples:
      forensics plot-compare runs/a runs/b
      forensics plot-compare runs/a runs/b --rtol 1e-5 --out apart.png
      forensics plot-compare runs/a runs/b --show
      forensics plot-compare before.csv after.csv --map loss=train/total

    Exit code: 0 done, 2 a RUN that cannot be read, or no step in common.
    """
    prepare("plot-compare", out, show, (run_a, run_b))
    reading = reading_of(format_in, mapping)
    a, b = load_run(run_a, reading), load_run(run_b, reading)
    out = out or (None if show else picture_of(a, "compare"))
    comparison = compare(a, b, rtol=rtol)
    series = chart_series(a), chart_series(b)
    if show:
        put_terminal([*zip("AB", series, strict=True)], ("loss", "norm"))
    if out is not None:
        put_figure(draw_compare(comparison, *series), out)
    return ExitCode.DONE
