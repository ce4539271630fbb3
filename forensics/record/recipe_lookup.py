"""Finding a recipe: by its registered name, or as ``path/to/file.py:name``."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from forensics.errors import ForensicsError, InputError, UsageError
from forensics.record.being_read import being_read
from forensics.record.recipe import Recipe, recipe

GROUP = "forensics.recipes"
"""Entry-point group: each names a ``Recipe``, several in a tuple or list, or a module of them."""

RecipeClass = type[Recipe]


def find_recipe(reference: str) -> RecipeClass:
    """The recipe that ``reference`` names.

    Args:
        reference: a registered name, or ``path/to/file.py:name``. The name may be left out where
            the file holds one recipe.

    Raises:
        InputError: no such file, or the file or package raises when it is loaded.
        UsageError: no recipe of that name.
    """
    path, name = split_reference(reference)
    if path is not None:
        return _find_in_file(path, name)
    broken: list[str] = []
    known: list[str] = []
    for point in _points():
        try:
            recipes = _load_point(point)
        except InputError as error:
            broken.append(error.line())
            continue
        if name in recipes:
            return recipes[name]
        known += recipes
    raise _no_such_recipe(name, known, broken)


def split_reference(reference: str) -> tuple[Path | None, str]:
    """``(file, name)``; the file is None for a registered name, the name may be empty."""
    head, colon, name = reference.rpartition(":")
    if colon and head.endswith(".py"):
        return Path(head), name
    if reference.endswith(".py"):
        return Path(reference), ""
    return None, reference


def registered_recipes() -> tuple[dict[str, RecipeClass], list[str]]:
    """All registered recipes by name, ours first, and a line for each package that fails to load.

    Where two packages use one name, the first keeps it.
    """
    found: dict[str, RecipeClass] = {}
    broken: list[str] = []
    for point in _points():
        try:
            found = {**_load_point(point), **found}
        except InputError as error:
            broken.append(error.line())
    return found, broken


def recipes_of(reference: str) -> dict[str, RecipeClass]:
    """The recipes of a file (``path/to/file.py``), or the one that ``reference`` names."""
    path, name = split_reference(reference)
    if path is not None and not name:
        return _by_name(_recipes_in(load_file(path)))
    found = find_recipe(reference)
    return {found.name: found}


def _points() -> list[EntryPoint]:
    """Our own entry points first, so that no other package can shadow or break them."""
    return sorted(entry_points(group=GROUP), key=lambda p: not p.value.startswith("forensics."))


def _load_point(point: EntryPoint) -> dict[str, RecipeClass]:
    try:
        return _by_name(_recipes_in(point.load()))
    except Exception as error:  # a stranger's package may raise anything
        raise InputError(
            f"cannot be loaded ({type(error).__name__}: {error})",
            where=f"entry point {point.name} = {point.value}",
            hint="reinstall or remove that package",
        ) from error


def _find_in_file(path: Path, name: str) -> RecipeClass:
    module = load_file(path)
    recipes = _by_name(_recipes_in(module))
    if not name and len(recipes) == 1:
        return next(iter(recipes.values()))
    if name in recipes:
        return recipes[name]
    chosen = getattr(module, name, None) if name else None
    if isinstance(chosen, type) and issubclass(chosen, Recipe):
        return chosen if chosen.name else recipe(name)(chosen)
    if isinstance(chosen, FunctionType):
        return recipe(name)(chosen)
    raise _no_such_recipe(name, list(recipes), [], where=path)


def load_file(path: Path) -> ModuleType:
    """A Python file as a module of a private name; ``sys.path`` is left alone.

    Raises:
        InputError: no such file, or it raises when it is loaded.
        UsageError: it begins a recording when it is loaded.
    """
    if not path.is_file():
        raise InputError("no such file", where=path, hint="write path/to/file.py:recipe_name")
    resolved = path.resolve()
    digest = hashlib.sha256(str(resolved).encode()).hexdigest()[:12]
    private = f"_forensics_recipe_{digest}"
    spec = spec_from_file_location(private, resolved)
    if spec is None or spec.loader is None:
        raise InputError("cannot be loaded as Python", where=path)
    module = module_from_spec(spec)
    sys.modules[private] = module  # dataclasses and pickle look a class's module up there
    try:
        with being_read(path):
            spec.loader.exec_module(module)
    except ForensicsError:
        del sys.modules[private]
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[private]
        raise InputError(_what_failed(error, resolved), where=path, hint=_hint(error)) from error
    return module


def _what_failed(error: BaseException, path: Path) -> str:
    """The error and the last line of the user's file that led to it."""
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    at = f" at line {line}" if line else ""
    return f"raises {type(error).__name__}{at} when loaded: {error}"


def _hint(error: BaseException) -> str | None:
    if isinstance(error, ModuleNotFoundError):
        return "its folder is not on the import path: install that module, or set PYTHONPATH"
    return None


def _recipes_in(source: Any) -> Iterator[RecipeClass]:
    """The registered recipes of a tuple or list, those a module defines, or the one recipe itself.

    What a module merely imports, as the base of its own, is not its to offer.
    """
    if isinstance(source, type) and issubclass(source, Recipe):
        yield source
        return
    if isinstance(source, ModuleType):
        own = [e for e in vars(source).values() if getattr(e, "__module__", "") == source.__name__]
        yield from _recipes_in(own)
        return
    for entry in source:
        # A name inherited from a registered recipe is not the subclass's own.
        if isinstance(entry, type) and issubclass(entry, Recipe) and vars(entry).get("name"):
            yield entry


def _by_name(recipes: Iterable[RecipeClass]) -> dict[str, RecipeClass]:
    return {entry.name: entry for entry in recipes}


def _no_such_recipe(
    name: str, known: list[str], broken: list[str], where: Path | None = None
) -> UsageError:
    what = f"no recipe is called {name!r}"
    if where is not None:
        if not known:
            what = what if name else "holds no recipe"
            return UsageError(what, where=where, hint="register one with @recipe")
        what = what if name else f"holds {len(known)} recipes"
        return UsageError(what, where=where, hint=f"add one of :{', :'.join(sorted(known))}")
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    hint += "`forensics record --list` shows them; one of your own is path/to/file.py:name"
    return UsageError("; ".join([what, *broken]), hint=hint)
