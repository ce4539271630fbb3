"""Healthy logs: nothing at warning or above may be said about any of them."""

from tests.corpus.healthy import fields, loss_scale, oddities, shapes, trained

__all__ = ["fields", "loss_scale", "oddities", "shapes", "trained"]
