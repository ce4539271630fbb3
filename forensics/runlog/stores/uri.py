"""A URI taken apart: scheme, bucket and key, and what it says beside them."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote

from forensics.frozen import dataclass
from forensics.runlog.stores.scheme import PATTERN

_WEB = ("http", "https")
_S3 = ("s3", "s3a", "s3n")
_WHOLE_KEYS = (*_S3, *_WEB, "gs", "gcs")
"""Schemes whose keys may hold ``::``."""
_OPTIONS = frozenset(("region", "scheme", "endpoint_override", "anonymous"))
"""What may follow a ``?`` in ``s3://``, as Arrow names it. What else has a ``?`` is a key."""


@dataclass(frozen=True)
class Uri:
    """A place elsewhere.

    Attributes:
        text: as given, without slashes at its end where it is of no web server.
        scheme: ``s3``, ``gs``, ``https`` …, in small letters; of a chain its first part's.
        address: the text without options, and without what a chain goes on with.
        options: of ``s3://``, by name.
    """

    text: str
    scheme: str
    address: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parsed(cls, text: str) -> Uri:
        """From what ``is_uri`` takes; keys are taken as they stand, nothing is decoded."""
        match = re.match(PATTERN, text)
        scheme = match["scheme"].lower() if match else ""
        chain = re.match(r"([^:]+://.*?)(::.*://.*)", text)
        if chain is None and scheme not in _WHOLE_KEYS:  # an archive that is a path of this machine
            chain = re.match(r"([^:]+://.*?)(::[/.~].*)", text)
        if chain or text.partition("://")[0].count("::"):
            address = chain[1] if chain else text
            return cls(text, text.partition("://")[0], address)
        if scheme in _WEB:  # a slash at its end is a part of the path, or of a signature
            return cls(text, scheme, text)
        address, mark, query = text.rpartition("?")
        options = tuple(parse_qsl(query)) if mark and scheme in _S3 else ()
        if not options or not _OPTIONS.issuperset(name for name, _ in options):
            return cls(_bare(text), scheme, _bare(text))
        return cls(f"{_bare(address)}?{query}", scheme, _bare(address), options)

    @property
    def on_the_web(self) -> bool:
        """Is it one file behind a web server?"""
        return self.scheme in _WEB

    @property
    def chained(self) -> bool:
        """Is it one of fsspec's chains, as ``zip://x.csv::s3://…``?"""
        return "::" in self.scheme or self.text[len(self.address) :].startswith("::")

    @property
    def key(self) -> str:
        """Bucket and key, as Arrow's file systems take them."""
        return self.address.partition("://")[2]

    @property
    def name(self) -> str:
        """The last part."""
        path = self.key
        if self.on_the_web:
            path = unquote(re.split(r"[?#]", path, maxsplit=1)[0].rstrip("/"))
        return path.rpartition("/")[2]

    @property
    def parent(self) -> Uri:
        """The place that it is in."""
        start = self.address.partition("://")[0]
        address = f"{start}://{self.key.rpartition('/')[0]}"
        return Uri(address + self.text[len(self.address) :], self.scheme, address, self.options)

    def below(self, relative: str) -> str:
        """The text of a place in it; itself where ``relative`` is empty or ``.``."""
        if relative in ("", "."):
            return self.text
        slash = "" if self.address.endswith("/") else "/"
        return f"{self.address}{slash}{relative}{self.text[len(self.address) :]}"


def _bare(text: str) -> str:
    bare = text.rstrip("/")
    return bare if not bare.endswith(":") else text
