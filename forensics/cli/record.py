"""``forensics record``: train a recipe and record the run."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forensics.cli.record_progress import recording_progress
from forensics.cli.streams import printed, say, write_stdout
from forensics.cli.torch_start import import_torch, without_torch
from forensics.errors import ExitCode, ForensicsError, UsageError
from forensics.record.config import Config
from forensics.record.settings_toml import parse_assignments, read_settings, to_toml

if TYPE_CHECKING:
    from forensics.record.options import RecordOptions
    from forensics.record.recipe import Recipe

_SETTINGS = ("steps", "seed", "precision", "device", "accumulation")


@click.command(short_help="Train a recipe and record the run.")
@click.argument("recipe", required=False, metavar="RECIPE")
@click.option("--list", "listing", is_flag=True, help="Describe the recipes, or those of a file.")
@click.option("--print-config", is_flag=True, help="Print the whole config as TOML and stop.")
@click.option("--out", type=click.Path(path_type=Path), help="Run directory. Default: runs/RECIPE.")
@click.option(
    "--config", metavar="FILE", type=click.Path(path_type=Path), help="TOML, or a run.json."
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="One setting, such as optimizer.lr=1e-3. Repeatable.",
)
@click.option("--steps", type=int, help="Optimizer steps to attempt.")
@click.option("--seed", type=int, help="Of all random numbers, the data's too.")
@click.option("--precision", type=click.Choice(("fp32", "fp16", "bf16", "auto")))
@click.option("--device", help="auto, cpu, cuda, cuda:1 or mps.")
@click.option("--max-norm", metavar="NUMBER", help="Clip threshold; none to clip nothing.")
@click.option("--accumulation", type=int, help="Micro-batches an optimizer step.")
@click.option(
    "--resume", is_flag=True, help="Continue the run in --out, with its own settings and options."
)
@click.option("--overwrite", is_flag=True, help="Remove the run in --out and begin anew.")
@click.option(
    "--checkpoint-every", type=int, default=100, show_default=True, help="Steps; 0: none."
)
@click.option(
    "--keep", default="last:3", show_default=True, help="Checkpoints to keep: last:N,every:K."
)
@click.option(
    "--snapshot-every",
    type=int,
    default=100,
    show_default=True,
    help="Steps between per-parameter snapshots; 0: on bad steps only.",
)
@click.option("--activations", is_flag=True, help="Record activation statistics per module.")
@click.option(
    "--extras", metavar="COLUMN,…", default="", help="Further columns, such as update_l2,param_l2."
)
@click.option(
    "--log-every", type=int, default=1, show_default=True, help="Steps between --extras values."
)
@click.option("--abort-on-skip-rate", is_flag=True, help="Stop (exit 3) on the skip-rate alarm.")
def record(recipe: str | None, listing: bool, print_config: bool, **given: Any) -> ExitCode:
    """Train a recipe and record the run.

    RECIPE is a name that --list shows, or one of your own as path/to/file.py:name. Settings come
    from the recipe, then --config, then --set, then the options here.

    \b
    Examples:
      forensics record healthy-fp16 --out runs/x
      forensics record fp16-overflow --precision bf16 --set optimizer.lr=1e-3
      forensics record my_train.py:my_recipe --config run.toml --steps 500

    Under `torchrun --nproc-per-node N -m forensics record …` N ranks train together.

    Exit code: 0 done, 2 wrong usage, 3 stopped by the skip-rate alarm, 4 the training raised,
    130 interrupted. What was recorded until then is always kept.
    """
    if find_spec("torch") is None:
        raise without_torch("recording")
    import_torch()
    from forensics.record.recipe_lookup import find_recipe

    if listing:
        write_stdout(_describe(recipe))
        return ExitCode.DONE
    if recipe is None:
        raise click.UsageError("name a RECIPE; `forensics record --list` shows them")
    chosen = find_recipe(recipe)
    out = given["out"] or Path("runs") / chosen.name
    if given["resume"]:
        given |= _recorded_options(out, _given_by_hand())
    config = _config(chosen, out, given)
    if print_config:
        write_stdout(to_toml(config.to_dict()))
        return ExitCode.DONE
    _record(recipe, chosen(config), _options(recipe, out, given))
    return ExitCode.DONE


def _describe(reference: str | None) -> str:
    """The recipes and their lines; what could not be loaded is said aside."""
    from forensics.record.recipe_lookup import recipes_of, registered_recipes

    recipes, broken = registered_recipes() if reference is None else (recipes_of(reference), [])
    for line in broken:
        say(line)
    width = max(map(len, recipes), default=0)
    lines = [
        printed(f"{name:{width}}  {entry.summary}".rstrip()) for name, entry in recipes.items()
    ]
    return "\n".join([*lines, ""])


def _config(recipe: type[Recipe], out: Path, given: dict[str, Any]) -> Config:
    """The recipe's defaults (on a resume: the run's own config), changed by file and options."""
    config = Config.from_dict(recipe.defaults.to_dict(), where=f"defaults of {recipe.name}")
    if given["resume"] and (recorded := _recorded_config(out, recipe.name)):
        config = Config.from_dict(recorded, base=config, where=out / "run.json")
    if given["config"]:
        path = given["config"]
        config = Config.from_dict(read_settings(path), base=config, where=path)
    if given["assignments"]:
        changes = parse_assignments(given["assignments"])
        config = Config.from_dict(changes, base=config, where="--set")
    flags = {name: given[name] for name in _SETTINGS if given[name] is not None}
    if given["max_norm"] is not None:
        flags |= parse_assignments([f"max_norm={given['max_norm']}"])
    return Config.from_dict(flags, base=config, where="command line")


def _recorded_config(out: Path, recipe: str) -> dict[str, Any]:
    """The config of the run in ``out``; empty where it is of another recipe: refused later."""
    from forensics.runlog.manifest import MANIFEST_NAME, read_manifest

    if not (out / MANIFEST_NAME).exists():
        return {}
    recorded = read_manifest(out).recipe
    config = recorded.get("config") if recorded.get("name") in (None, recipe) else None
    return config if isinstance(config, dict) else {}


def _given_by_hand() -> set[str]:
    """The options that the command line names itself."""
    context = click.get_current_context()
    typed = click.core.ParameterSource.COMMANDLINE
    return {name for name in context.params if context.get_parameter_source(name) is typed}


def _recorded_options(out: Path, typed: set[str]) -> dict[str, Any]:
    """What the run in ``out`` was recorded with, but for what the command line says anew."""
    from forensics.record.options import KEPT, OPTIONAL_EXTRAS
    from forensics.runlog.manifest import MANIFEST_NAME, read_manifest

    if not (out / MANIFEST_NAME).exists():
        return {}
    manifest = read_manifest(out)
    recorded: dict[str, Any] = {
        name: value
        for name, value in manifest.recording.items()
        if name in KEPT and type(value) is KEPT[name]
    }
    columns = [name for name in manifest.columns if name in OPTIONAL_EXTRAS]
    recorded["extras"] = ",".join(map(str, recorded.get("extras") or columns))
    return {name: value for name, value in recorded.items() if name not in typed}


def _options(reference: str, out: Path, given: dict[str, Any]) -> RecordOptions:
    from forensics.record.options import KeepPolicy, RecordOptions
    from forensics.record.recipe_lookup import split_reference

    extras = tuple(name.strip() for name in given["extras"].split(",") if name.strip())
    passed = (
        "resume",
        "overwrite",
        "checkpoint_every",
        "snapshot_every",
        "activations",
        "log_every",
        "abort_on_skip_rate",
    )
    return RecordOptions(
        out,
        keep=KeepPolicy.parse(given["keep"]),
        extras=extras,
        recipe_file=split_reference(reference)[0],
        **{name: given[name] for name in passed},
    )


def _record(reference: str, recipe: Recipe, options: RecordOptions) -> None:
    """Record, and end with where the run is and what to do next, however it ends.

    Under torchrun every rank comes here; rank 0 alone speaks of the run.
    """
    from forensics.record.ranks.world import launched
    from forensics.record.reference_loop import record_run

    with launched(recipe.config.device) as world:
        if not world.leads:
            record_run(recipe, recipe.config, options, say=lambda _: None)
            return
        _record_aloud(reference, recipe, options, record_run)


def _record_aloud(
    reference: str, recipe: Recipe, options: RecordOptions, record_run: Callable[..., Any]
) -> None:
    try:
        with recording_progress(recipe.name) as (on_step, tell):
            record_run(recipe, recipe.config, options, on_step=on_step, say=tell)
    except KeyboardInterrupt:
        say(f"{_told(options.out)}; `{_resume(reference, options.out)}` continues it")
        raise
    except UsageError:
        raise
    except ForensicsError as error:
        if not _steps_in(options.out):
            raise
        hint = f"everything until then is recorded: {_next(options.out)}"
        raise type(error)(error.what, where=error.where, hint=hint) from error
    lines = [_told(options.out), *_lacks(options.out), f"next: {_next(options.out)}"]
    write_stdout("".join(f"{printed(line)}\n" for line in lines))


def _told(out: Path) -> str:
    """Where the run is, and its rows and skips."""
    from forensics.runlog.run import load_run

    if not _steps_in(out):
        return f"{out}: no step was recorded"
    steps = load_run(out).steps
    skipped = int(steps["skipped"].sum())
    return f"{out}: {len(steps):,} steps recorded, {skipped:,} skipped"


def _lacks(out: Path) -> list[str]:
    """What a full disk did not take, as the run's own manifest lists it."""
    from forensics.runlog.manifest import MANIFEST_NAME, read_manifest

    if not (out / MANIFEST_NAME).is_file():
        return []
    return [f"not recorded: {clause}" for clause in read_manifest(out).missing]


def _steps_in(out: Path) -> bool:
    """Does the run's log hold a row beside its header?"""
    log = out / "steps.csv"
    if not log.is_file():
        return False
    with log.open("rb") as file:
        return bool(file.readline() and file.readline())


def _next(out: Path) -> str:
    import shlex

    return f"forensics report {shlex.quote(str(out))}"


def _resume(reference: str, out: Path) -> str:
    import shlex

    return f"forensics record {shlex.quote(reference)} --out {shlex.quote(str(out))} --resume"
