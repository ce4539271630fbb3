"""What trained a run: as its ``run.json`` says, or as the user does where there is none."""

from __future__ import annotations

from dataclasses import replace

from forensics.errors import NotReplayableError
from forensics.replay.rerun.rebuild import Rebuilt, Say, rebuild
from forensics.runlog.manifest import MANIFEST_NAME, Manifest
from forensics.runlog.run import Run


def what_trained(
    run: Run, *, recipe: str | None, device: str | None, say: Say
) -> tuple[Manifest, Rebuilt]:
    """The manifest and what it is rebuilt to.

    A run without a manifest is that of the recipe that the user names, in the settings that the
    recipe itself brings.

    Args:
        run: to be replayed.
        recipe: a registered name or ``file.py:name``; None for the one that ``run.json`` names.
        device: to replay on, or None.
        say: told what the user should know.

    Raises:
        NotReplayableError: neither says what was trained, or it does not fit.
        InputError, UsageError: the recipe that the user names cannot be loaded.
    """
    if run.manifest is not None:
        return run.manifest, rebuild(run.manifest, recipe=recipe, device=device, say=say)
    torn = run.path.is_dir() and (run.path / MANIFEST_NAME).exists()
    state = "run.json is damaged" if torn else "there is no run.json"
    if recipe is None:
        raise NotReplayableError(
            f"{state}, so nothing says what was trained",
            where=run.path,
            hint="name the training: --recipe path/to/file.py:name",
        )
    say(f"{state}: the settings are those that the recipe itself brings")
    found = rebuild(Manifest(), recipe=recipe, device=device, say=say)
    own = found.kind.defaults
    return Manifest(max_norm=own.max_norm), replace(found, config=own)
