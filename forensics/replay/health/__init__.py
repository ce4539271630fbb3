"""Saved states judged by their values alone, without a recipe."""
