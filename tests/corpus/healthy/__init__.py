"""Healthy logs: nothing at warning or above may be said about any of them."""

from tests.corpus.healthy import loss_scale, oddities, shapes, trained

__all__ = ["loss_scale", "oddities", "shapes", "trained"]
