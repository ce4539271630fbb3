"""Telling: pure renderers of a diagnosis. Never need torch."""
