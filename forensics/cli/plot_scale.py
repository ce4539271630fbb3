"""``forensics plot-scale``: the loss scale against the step."""

from __future__ import annotations

from pathlib import Path

import click

from forensics.cli.plot_options import picture_of, plot_options, prepare, put_figure, put_terminal
from forensics.cli.reading_options import judging_progress, reading_of, reading_options
from forensics.diagnose.chart_series import chart_series
from forensics.diagnose.engine import diagnose
from forensics.errors import ExitCode
from forensics.render.scale_plot import draw_scale_page, scale_of
from forensics.runlog.run import load_run


@click.command(
    "plot-scale", short_help="Draw the loss scale: growths, backoffs, skips, and its limits."
)
@click.argument("run", metavar="RUN_OR_CSV", type=click.Path())
@plot_options
@reading_options
def plot_scale(
    run: str, out: Path | None, show: bool, format_in: str, mapping: tuple[str, ...]
) -> ExitCode:
    """Draw the loss scale: growths, backoffs, skips, and its limits.

    RUN_OR_CSV is a run directory, its steps.csv, or a log of another program. Skipped steps are
    ticks by their reason, collapse and oscillation are shaded as the report sees them, and the
    learning rate stands faint behind.

    \b
    Examples:
      forensics plot-scale runs/x
      forensics plot-scale runs/x/steps.csv --out scale.svg
      forensics plot-scale runs/x --show

    Exit code: 0 done, 2 a log that cannot be read, or has no loss scale (bf16 and fp32 have none).
    """
    prepare("plot-scale", out, show, (run,))
    loaded = load_run(run, reading_of(format_in, mapping))
    out = out or (None if show else picture_of(loaded, "scale"))
    diagnosis = diagnose(loaded, progress=judging_progress())
    series = chart_series(loaded, diagnosis)
    scale_of(series, diagnosis)
    if show:
        put_terminal([("", series)], ("scale", "skips"))
    if out is not None:
        put_figure(draw_scale_page(series, diagnosis), out)
    return ExitCode.DONE
