"""``--out`` and ``--show`` of the verbs that draw, and where a picture goes by default."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from forensics.cli.output_options import spare_the_input
from forensics.cli.streams import printed, write_stdout
from forensics.errors import UsageError
from forensics.render.figure_file import check_suffix, figure_bytes
from forensics.render.output import look_of, write_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from forensics.diagnose.chart_parts import ChartSeries
    from forensics.diagnose.param_map import ParamMap
    from forensics.runlog.run import Run

F = TypeVar("F", bound=Callable[..., Any])


def plot_options(command: F) -> F:
    """Add ``--out`` and ``--show``."""
    add_out = click.option(
        "--out",
        type=click.Path(path_type=Path),
        help="The picture: .png (200 dpi), .svg or .pdf. Default: a .png beside the run; of a "
        "run in a store, in the current folder.",
    )
    add_show = click.option(
        "--show", is_flag=True, help="Draw in the terminal, too; alone, write no file."
    )
    return add_out(add_show(command))


def prepare(verb: str, out: Path | None, show: bool, paths: Iterable[str]) -> None:
    """Refuse what cannot end well before anything is read.

    Raises:
        UsageError: the file's ending names no kind of picture.
        MissingExtraError: ``--show`` without plotext.
        OutputError: the picture would be written over a log.
    """
    if out is not None:
        check_suffix(out)
    spare_the_input(out, paths)
    if show:
        from forensics.render.terminal_plot import check_terminal_plots

        check_terminal_plots(verb)


def beside(run: Path, kind: str) -> Path:
    """Where the picture of a run goes by default: ``runs/x`` gives ``runs/x-scale.png``.

    Raises:
        UsageError: the log is standard input, which lies nowhere.
    """
    if str(run) == "-":
        raise UsageError("standard input has no place beside it", hint="say where with --out")
    place = run if run.name not in ("", "..") else run.resolve()
    name = place.name if place.is_dir() else place.name.split(".", 1)[0] or place.name
    return place.with_name(f"{name}-{kind}.png")


def picture_of(run: Run, kind: str) -> Path:
    """Where the picture of a run goes by default: beside it, or here where it lies in a store."""
    place = beside(run.path, kind)
    return Path(place.name) if run.elsewhere else place


def put_figure(figure: Figure, out: Path) -> None:
    """Write the picture whole or not at all, and say where it is."""
    write_file(figure_bytes(figure, out.suffix), out)
    write_stdout(f"{printed(out)}\n")


def put_param_map(drawn: ParamMap) -> None:
    """Draw the map of the parameters in the terminal."""
    from forensics.render.terminal_map import render_terminal_map

    write_stdout(render_terminal_map(drawn, look_of(sys.stdout)))


def put_terminal(runs: list[tuple[str, ChartSeries]], names: Iterable[str]) -> None:
    """Draw some charts in the terminal."""
    from forensics.render.terminal_plot import render_terminal

    write_stdout(render_terminal(runs, [*names], look_of(sys.stdout)))
