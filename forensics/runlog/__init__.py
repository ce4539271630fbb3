"""The run on disk: the one owner of every file format, both ways. Never needs torch."""
