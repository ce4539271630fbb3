"""What a function for ``bisect --recipe train.py:make_trainer`` returns, and which function is one.

It needs no argument and builds what the script trains with, untrained:

- a Hugging Face ``Trainer``, or
- ``(trainer, module, loader)`` of Lightning: its ``Trainer``, the ``LightningModule`` and what
  ``fit`` gets beside it (loaders, a ``DataModule``, or a dict of ``fit``'s arguments; may be left
  out).
"""

from __future__ import annotations

import ast
import contextlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forensics.errors import ForensicsError, NotReplayableError
from forensics.record.assembly import told
from forensics.record.recipe import FunctionRecipe, Recipe
from forensics.record.recipe_lookup import split_reference
from forensics.record.rng import restore_rng, rng_state
from forensics.replay.trainers.engine import Engine

Make = Callable[[], Any]


def names_a_maker(reference: str | None) -> bool:
    """Does ``file.py:name`` name a function that needs no argument? The file is read, not run.

    One that takes a ``config`` is a recipe.
    """
    path, name = split_reference(reference) if reference else (None, "")
    if path is None or not name:
        return False
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return not node.decorator_list and _needs_nothing(node.args)
    return False


def _needs_nothing(given: ast.arguments) -> bool:
    placed = [*given.posonlyargs, *given.args]
    if any(argument.arg == "config" for argument in (*placed, *given.kwonlyargs)):
        return False
    return len(given.defaults) == len(placed) and None not in given.kw_defaults


class Maker:
    """Calls the user's function, each time with the random numbers of the first time.

    Args:
        kind: the recipe that the lookup made of the function.
    """

    def __init__(self, kind: type[Recipe]) -> None:
        assert issubclass(kind, FunctionRecipe)
        self.name = kind.name
        self._make: Make = inspect.getattr_static(kind, "function").__func__
        self._rng = rng_state()

    def engine(self, checkpoint: Path | None, aside: Path) -> Engine:
        """What it returns, as a trainer that will resume from a checkpoint.

        Args:
            checkpoint: None begins with step 0.
            aside: folder that takes the place of the trainer's own, for whoever writes there.

        Raises:
            NotReplayableError: it raises, or returns something else.
        """
        restore_rng(self._rng)
        try:
            made = self._make()
        except ForensicsError:
            raise
        except (Exception, SystemExit) as error:
            argv = isinstance(error, SystemExit)
            raise NotReplayableError(
                f"{self.name}() raised {told(error)}",
                where="trainer",
                hint="what it reads from sys.argv is not there: give its parser a list"
                if argv
                else None,
            ) from error
        return _engine_of(made, self.name, checkpoint, aside)


def _engine_of(made: Any, name: str, checkpoint: Path | None, aside: Path) -> Engine:
    if hasattr(made, "callback_handler") and hasattr(made, "training_step"):
        from forensics.replay.trainers.huggingface import HuggingFaceEngine

        _one_process(getattr(made.args, "world_size", 1))
        return HuggingFaceEngine(made, checkpoint, aside)
    if isinstance(made, tuple | list) and len(made) > 1 and hasattr(made[0], "fit_loop"):
        from forensics.replay.trainers.lightning import LightningEngine

        _one_process(made[0].world_size)
        return LightningEngine(made[0], made[1], made[2:], checkpoint, aside)
    got = type(made).__name__
    raise NotReplayableError(
        f"{name}() returned a {got}, which is no trainer that can be resumed",
        where="trainer",
        hint="return a Hugging Face Trainer, or (trainer, module, loader) of Lightning; any other "
        "loop is described by a recipe: a function of the config that returns a Training",
    )


def _one_process(world_size: int) -> None:
    if world_size > 1:
        raise NotReplayableError(
            f"it trains in {world_size} processes; a trainer's loop is replayed in one",
            where="trainer",
        )
