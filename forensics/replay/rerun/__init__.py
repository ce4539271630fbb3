"""A recorded training run again: what it is rebuilt from, and what a step of it came to."""
