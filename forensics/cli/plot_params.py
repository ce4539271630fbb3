"""``forensics plot-params``: the gradient norm of every parameter at every snapshot."""

from __future__ import annotations

from pathlib import Path

import click

from forensics.cli.plot_options import picture_of, plot_options, prepare, put_figure, put_param_map
from forensics.cli.reading_options import reading_of
from forensics.diagnose.param_map import param_map
from forensics.errors import ExitCode
from forensics.render.params_plot import draw_params
from forensics.runlog.run import load_run


@click.command("plot-params", short_help="Draw the gradient norm of every parameter as a heat map.")
@click.argument("run", metavar="RUN", type=click.Path())
@plot_options
def plot_params(run: str, out: Path | None, show: bool) -> ExitCode:
    """Draw the gradient norm of every parameter as a heat map.

    RUN is a run directory with per-parameter snapshots. Parameters stand in network order, steps
    run to the right; what is not finite is crossed out, and who moved first is marked.

    \b
    Examples:
      forensics plot-params runs/x
      forensics plot-params runs/x --out params.svg
      forensics plot-params runs/x --show

    Exit code: 0 done, 2 a RUN that cannot be read, or has no snapshot of a gradient.
    """
    prepare("plot-params", out, show, (run,))
    loaded = load_run(run, reading_of("", ()))
    out = out or (None if show else picture_of(loaded, "params"))
    drawn = param_map(loaded)
    if show:
        put_param_map(drawn)
    if out is not None:
        put_figure(draw_params(drawn), out)
    return ExitCode.DONE
