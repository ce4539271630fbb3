"""``forensics compare``: are two runs the same, and if not, where do they part?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from forensics.cli.output_options import look, output_options, put, spare_the_input
from forensics.cli.reading_options import reading_of, reading_options
from forensics.cli.two_runs import two_runs
from forensics.diagnose.comparison import compare as compare_runs
from forensics.errors import ExitCode
from forensics.render.output import choose_format
from forensics.runlog.run import load_run


@click.command(short_help="Say whether two runs are the same, and where they part.")
@two_runs
@output_options
@reading_options
def compare(
    run_a: str,
    run_b: str,
    rtol: float,
    form: str | None,
    out: Path | None,
    format_in: str,
    mapping: tuple[str, ...],
) -> ExitCode:
    """Say whether two runs are the same, and where they part.

    Compares every column over the steps that both have, then config, code, data and machine, then
    loss, norm, clip rate and skip rate as a whole. Clocks and throughput are left out. A RUN is
    what `report` takes, a log of another program too; --map and --format-in hold for both.

    \b
    Examples:
      forensics compare runs/a runs/b
      forensics compare runs/a runs/b --rtol 1e-5
      forensics compare runs/seed0 runs/seed1 --format markdown

    Exit code: 0 alike (a run that goes on longer is alike as far as the other goes), 1 different,
    2 a RUN that cannot be read, or no step in common.
    """
    spare_the_input(out, (run_a, run_b))
    reading = replace(reading_of(format_in, mapping), most_rows=None)  # row by row, all of them
    comparison = compare_runs(load_run(run_a, reading), load_run(run_b, reading), rtol=rtol)
    chosen = choose_format(form, out)
    if chosen == "json":
        from forensics.render.compare_json import render_compare_json

        text = render_compare_json(comparison)
    elif chosen == "markdown":
        from forensics.render.compare_markdown import render_compare_markdown

        text = render_compare_markdown(comparison)
    else:
        from forensics.render.compare_text import render_compare_text

        text = render_compare_text(comparison, **look(out))
    put(text, out)
    return ExitCode.DONE if comparison.alike else ExitCode.FINDINGS
