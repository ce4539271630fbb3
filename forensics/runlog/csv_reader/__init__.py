"""Reading step logs, whoever wrote them: a fast path for what is clean, and mending for the rest.

One block of lines after the other goes through ``fast`` (typed pyarrow.csv); the stretches that
it refuses go line by line through ``mending``, which notes what it mends. ``table`` reads a file
from start to end, ``ordering`` then settles what repeated and unordered steps mean.
"""
