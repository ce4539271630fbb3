"""Logs with one planted fault each, and the label that an experienced engineer would give."""

from tests.corpus.faulty import (
    clipping,
    dynamics,
    gradients,
    hard,
    learning_rate,
    logs,
    losses,
    messy,
    nonfinite,
    parameters,
    ranks,
    scaling,
    trained,
    trainers,
)

__all__ = [
    "clipping",
    "dynamics",
    "gradients",
    "hard",
    "learning_rate",
    "logs",
    "losses",
    "messy",
    "nonfinite",
    "parameters",
    "ranks",
    "scaling",
    "trained",
    "trainers",
]
