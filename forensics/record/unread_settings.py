"""Which settings a recipe never looks at: of the optimizer, the schedule, and the clip."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

from forensics.record.config import Config, OptimizerConfig, ScheduleConfig
from forensics.record.recipe import Recipe

_S = TypeVar("_S", OptimizerConfig, ScheduleConfig, Config)


class WatchedSettings:
    """A config that notes which of its settings are read while a recipe builds its training.

    Attributes:
        config: the same settings; give this one to ``build``.
    """

    def __init__(self, config: Config) -> None:
        self._plain = config
        self._read: set[str] = set()
        parts = replace(
            config,
            optimizer=self._watched(config.optimizer, "optimizer."),
            schedule=self._watched(config.schedule, "schedule."),
        )
        self.config = self._watched(parts, "")

    def has_read(self, name: str) -> bool:
        """Has a setting been read, such as ``max_norm`` or ``optimizer.lr``?"""
        return name in self._read

    def unread(self, defaults: Config) -> list[str]:
        """Settings that differ from the recipe's defaults and that nothing has read, in order."""
        found = []
        for part in ("optimizer", "schedule"):
            mine, usual = getattr(self._plain, part), getattr(defaults, part)
            changed = [
                f.name for f in fields(mine) if getattr(mine, f.name) != getattr(usual, f.name)
            ]
            found += [f"{part}.{name}" for name in changed]
        return [name for name in found if name not in self._read]

    def _watched(self, settings: _S, prefix: str) -> _S:
        kind, read = type(settings), self._read
        names = {f.name for f in fields(kind)}

        def noting(instance: Any, name: str) -> Any:
            if name in names:
                read.add(f"{prefix}{name}")
            return object.__getattribute__(instance, name)

        def plain(instance: Any) -> tuple[Any, ...]:  # a copy, or one sent to a process
            return kind, tuple(getattr(instance, f.name) for f in fields(kind))

        # A class of its own for each instance: isinstance() holds, and a config elsewhere is free.
        watching = type(kind.__name__, (kind,), {"__getattribute__": noting, "__reduce__": plain})
        made: _S = watching(**{name: getattr(settings, name) for name in names})
        read.difference_update(f"{prefix}{name}" for name in names)
        return made


def clip_is_unasked(kind: type[Recipe], config: Config) -> bool:
    """Is the clip threshold that of the reference step, for a recipe with a step of its own?

    Nobody has stated it then: whether it means anything shows in whether that step reads it.
    """
    return kind.step is not None and config.max_norm == kind.defaults.max_norm == Config().max_norm


def complaint(recipe: str, unread: list[str]) -> str:
    """What to tell the user, in one line."""
    it = "it" if len(unread) == 1 else "them"
    return (
        f"recipe {recipe} does not read {', '.join(unread)}: setting {it} changes nothing "
        "(its build() must take such values from config)"
    )
