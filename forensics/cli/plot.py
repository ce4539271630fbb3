"""``forensics plot``: a run on one page."""

from __future__ import annotations

from pathlib import Path

import click

from forensics.cli.plot_options import picture_of, plot_options, prepare, put_figure, put_terminal
from forensics.cli.reading_options import judging_progress, reading_of, reading_options
from forensics.diagnose.chart_series import chart_series
from forensics.diagnose.engine import diagnose
from forensics.errors import ExitCode
from forensics.render.run_plot import draw_run
from forensics.runlog.run import load_run


@click.command(
    "plot", short_help="Draw a run on one page: loss, norms, rate, scale, skips, findings."
)
@click.argument("run", metavar="RUN", type=click.Path())
@plot_options
@reading_options
def plot(
    run: str, out: Path | None, show: bool, format_in: str, mapping: tuple[str, ...]
) -> ExitCode:
    """Draw a run on one page: loss, norms, rate, scale, skips, findings.

    RUN is a run directory, its steps.csv, or a log of another program. Stretches that are NaN or
    Inf are hatched, and the findings are numbered as in the report. No spike is lost, however long
    the log.

    \b
    Examples:
      forensics plot runs/x
      forensics plot runs/x --out run.pdf
      forensics plot train.log --show

    Exit code: 0 done, 2 a RUN that cannot be read, or has nothing to draw.
    """
    prepare("plot", out, show, (run,))
    loaded = load_run(run, reading_of(format_in, mapping))
    out = out or (None if show else picture_of(loaded, "run"))
    diagnosis = diagnose(loaded, progress=judging_progress())
    series = chart_series(loaded, diagnosis)
    if show:
        put_terminal([("", series)], ("loss", "norm", "lr", "scale"))
    if out is not None:
        put_figure(draw_run(series, diagnosis), out)
    return ExitCode.DONE
