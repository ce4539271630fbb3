"""Runs that lie elsewhere: in an object store, or behind a web server.

``uri`` tells such a path from one of this machine; ``store`` opens what it names; ``objects`` reads
one object in ranges; ``mirror`` is the folder of this machine that stands for a place there, so
that every reader works as it does on files.
"""
