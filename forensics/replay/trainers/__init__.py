"""Replaying a run of a trainer (Hugging Face, Lightning) through that trainer's own resume."""
