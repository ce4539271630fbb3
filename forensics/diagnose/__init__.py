"""What went wrong: independent rules over a run, and one verdict."""
