"""The training side: the reference step, the recorder and the recipes. Needs torch."""
