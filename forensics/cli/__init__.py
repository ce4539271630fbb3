"""The command line: thin verbs, one module each; they parse, call, write and exit."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from forensics.cli.streams import discard_stdout, never_fail_to_print, say
from forensics.cli.verbs import VerbGroup
from forensics.errors import ExitCode, ForensicsError, TerminatedError

_HELP = """Log analysis and NaN forensics for PyTorch training runs.

Start with the run that died:

    forensics report runs/x
"""


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        import forensics

        click.echo(f"forensics {forensics.__version__}")
        ctx.exit()


@click.group(
    cls=VerbGroup,
    name="forensics",
    help=_HELP.replace("    forensics", "\b\n    forensics"),
    epilog="`forensics VERB --help` explains a verb.",
    subcommand_metavar="VERB ...",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.pass_context
def forensics_group(ctx: click.Context) -> None:
    """The group that ``main`` runs."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    A verb returns its exit code (None for 0) or raises; what is raised is told in one line here.

    Args:
        arguments: what follows the program's name; default ``sys.argv[1:]``.

    Returns:
        The exit code, one of ``ExitCode``.
    """
    never_fail_to_print()
    args = list(sys.argv[1:] if arguments is None else arguments)
    _forget_traffic()
    try:
        with forensics_group.make_context("forensics", args) as context:
            result: Any = forensics_group.invoke(context)
        _tell_traffic(args)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        return error.exit_code
    except BrokenPipeError:
        discard_stdout()
        return ExitCode.DONE
    except (KeyboardInterrupt, click.Abort) as error:
        return _interrupted(error)
    except click.ClickException as error:
        say(_usage_line(error))
        return ExitCode.USAGE
    except ForensicsError as error:
        say(error.line())
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the last line of defence: a bug becomes exit 70
        interrupt = _interrupt_behind(error)
        return _interrupted(interrupt) if interrupt is not None else _internal(error)
    return int(result or ExitCode.DONE)


_TRAFFIC = "forensics.runlog.stores.traffic"
"""Imported only by what reads from a store."""


def _forget_traffic() -> None:
    """What an earlier command of this process read is none of this one's."""
    if _TRAFFIC in sys.modules:
        sys.modules[_TRAFFIC].TRAFFIC.forget()


def _tell_traffic(args: list[str]) -> None:
    """How much was read from a store, which is paid for; of a scan only its processes know."""
    module = sys.modules.get(_TRAFFIC)
    if module is not None and module.TRAFFIC.requests and args[0] != "scan":
        say(module.TRAFFIC.told())


def _usage_line(error: click.ClickException) -> str:
    """The message of click itself on one line, with the help that answers it."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "forensics"
    text = error.format_message().rstrip(".")
    verb = path.removeprefix("forensics").strip()
    return f"{f'{verb}: ' if verb else ''}{text}; `{path} --help` explains"


def _interrupted(error: BaseException) -> ExitCode:
    """Ctrl-C, or SIGTERM."""
    terminated = isinstance(error, TerminatedError)
    say("terminated" if terminated else "interrupted")
    return ExitCode.TERMINATED if terminated else ExitCode.INTERRUPTED


def _interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """The Ctrl-C that was made into another error on its way, or None.

    Python 3.11 turns whatever leaves ``__set_name__``, while a class is made, into a RuntimeError;
    libraries in C do the like with what leaves a callback.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        if isinstance(link, KeyboardInterrupt):
            return link
        seen.add(id(link))
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return None


def _internal(error: Exception) -> int:
    """An exception nobody foresaw: our bug, told as such."""
    if os.environ.get("FORENSICS_DEBUG"):
        import traceback

        traceback.print_exception(error)
    detail = f"{type(error).__name__}: {error}".rstrip(": ")
    say(
        f"internal error: {detail}; this is a bug in forensics, not in your run: "
        "FORENSICS_DEBUG=1 shows the traceback to report"
    )
    return ExitCode.INTERNAL
