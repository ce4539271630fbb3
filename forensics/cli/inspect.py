"""``forensics inspect``: is a saved state finite, and what in it is not?"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forensics.cli.output_options import look, output_options, put, spare_the_input
from forensics.cli.streams import printed, say
from forensics.cli.torch_start import import_torch, without_torch
from forensics.diagnose.finding import Severity
from forensics.diagnose.state_health import StateHealth
from forensics.errors import ExitCode, InputError
from forensics.render.output import choose_format
from forensics.settings import SEVERITIES

if TYPE_CHECKING:
    from forensics.replay.saved_states import StateFile


@click.command(short_help="Say whether a saved state is finite, and what in it is not.")
@click.argument("checkpoints", nargs=-1, required=True, metavar="CKPT...", type=click.Path())
@click.option(
    "--fail-on",
    type=click.Choice(SEVERITIES),
    help="Exit 1 on this or worse: a state that is not finite is critical, one that will not stay "
    "so (a negative second moment) a warning. Default: never.",
)
@output_options
def inspect(
    checkpoints: tuple[str, ...], fail_on: str | None, form: str | None, out: Path | None
) -> ExitCode:
    """Say whether a saved state is finite, and what in it is not.

    CKPT is a file of torch.save (.pt, .pth, .ckpt, .bin) or safetensors, a Hugging Face
    checkpoint-N folder or one of torch.distributed.checkpoint, or a folder of such states. Nothing
    in it is run, and a state larger than memory can be looked at.

    \b
    Examples:
      forensics inspect runs/x/checkpoints/step-00000040.pt
      forensics inspect out/checkpoint-500 out/checkpoint-1000
      forensics inspect model.safetensors --fail-on critical

    Exit code: 0 done, 1 with --fail-on, 2 a CKPT that cannot be read.
    """
    if find_spec("torch") is None:
        raise without_torch("inspecting")
    import_torch()
    spare_the_input(out, checkpoints)
    states, errors = _examine_all(checkpoints)
    chosen = choose_format(form, out)
    if states or chosen == "json":
        put(_rendered(states, errors, chosen, out), out)
    for error in errors:
        say(error["message"])
    if errors:
        return ExitCode.USAGE
    limit = Severity[fail_on.upper()] if fail_on else None
    worst = max((s for s in map(severity, states) if s is not None), default=None)
    reached = limit is not None and worst is not None and worst >= limit
    return ExitCode.FINDINGS if reached else ExitCode.DONE


def severity(health: StateHealth) -> Severity | None:
    """How bad a state is; None where nothing is wrong with it."""
    if not health.finite:
        return Severity.CRITICAL
    return Severity.WARNING if health.risks else None


def _examine_all(paths: Sequence[str]) -> tuple[list[StateHealth], list[dict[str, str]]]:
    """The health of each state that can be read, and path and message of each that cannot."""
    states: list[StateHealth] = []
    errors: list[dict[str, str]] = []
    for path in paths:
        finite: frozenset[str] = frozenset()
        try:
            for file in _states_of(Path(path)):
                try:
                    states.append(_examine(file, finite))
                    finite |= states[-1].finite_names
                except InputError as error:
                    errors.append({"path": str(file.path), "message": error.line()})
        except InputError as error:
            errors.append({"path": path, "message": error.line()})
    return states, errors


def _states_of(path: Path) -> Iterator[StateFile]:
    """The state itself, or those of a folder in their order."""
    from forensics.replay.health.state_series import series_in
    from forensics.replay.saved_states import StateFile, is_state_folder

    if not path.is_dir() or is_state_folder(path):
        yield StateFile(path, None, None)
        return
    for candidate in series_in(path).candidates:
        yield from candidate.files


def _examine(file: StateFile, finite_before: frozenset[str]) -> StateHealth:
    """Look into one state, with a bar where somebody watches."""
    from forensics.replay.checkpoint_health import examine_state

    if file.refused:
        raise InputError(file.refused, where=file.path)
    if not sys.stderr.isatty():
        return examine_state(file.path, root=file.root, finite_before=finite_before)
    with click.progressbar(length=1, label=printed(file.path.name), file=sys.stderr) as bar:

        def move(seen: int, total: int) -> None:
            bar.length = max(total, 1)
            bar.update(seen - bar.pos)

        return examine_state(file.path, root=file.root, finite_before=finite_before, progress=move)


def _rendered(
    states: Sequence[StateHealth], errors: Sequence[dict[str, str]], form: str, out: Path | None
) -> str:
    if form == "json":
        from forensics.render.inspect_json import render_inspect_json

        return render_inspect_json(states, errors=errors)
    if form == "markdown":
        from forensics.render.inspect_markdown import render_inspect_markdown

        return render_inspect_markdown(states)
    from forensics.render.inspect_text import render_inspect_text

    return render_inspect_text(states, **look(out))
