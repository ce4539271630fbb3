"""What a web server sends of a file: whether that is all of it, and how it is packed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse, IncompleteRead

_GZIP_OR_ZLIB = 47
"""``wbits`` by which zlib tells the two apart by their first bytes."""
_PACKED = frozenset(("gzip", "x-gzip", "deflate"))
_FOREIGN = frozenset(("br", "compress", "x-compress"))
_FIRST = (b"\x1f\x8b", b"\x78")


class BrokenOffError(HTTPException):
    """The server sent less than the file."""


class OddPackingError(ValueError):
    """The server has packed the file as nobody asked it to."""


class Body:
    """The contents of an answer, unpacked as its headers say.

    Args:
        answer: of the server; nothing was read of it.
        packed: is the file itself a compressed one? Then it is kept so, whatever the headers say.

    Attributes:
        received: bytes that came.
        promised: bytes that the server said it would send; None where it did not.
        tells_its_end: would it be seen if bytes were missing at the end?

    Raises:
        OddPackingError: it is packed in a way that is not known here.
    """

    def __init__(self, answer: HTTPResponse, *, packed: bool) -> None:
        self._answer = answer
        self.received = 0
        length = answer.headers.get("Content-Length", "").strip()
        self.promised = int(length) if length.isdecimal() and not answer.chunked else None
        coding = answer.headers.get("Content-Encoding", "").strip().lower()
        if coding in _FOREIGN:
            raise OddPackingError(f"is sent packed as {coding!r}, which was not asked for")
        self._unpacker = (
            zlib.decompressobj(_GZIP_OR_ZLIB) if coding in _PACKED and not packed else None
        )
        self.tells_its_end = self.promised is not None or bool(answer.chunked)

    def parts(self, size: int) -> Iterator[bytes]:
        """The contents in parts, of about ``size`` bytes as they come.

        Raises:
            BrokenOffError: this was not all of it.
            TimeoutError: nothing more comes.
            OddPackingError: it is not packed as the headers say.
        """
        while data := self._received(size):
            if not self.received and not data.startswith(_FIRST):
                self._unpacker = None  # some servers only say that they pack
            self.received += len(data)
            yield from [data] if self._unpacker is None else self._unpacked(data)
        if self.promised is not None and self.received < self.promised:
            raise self._broken_off(f" of {self.promised:,}")
        if self._unpacker is not None and self.received and not self._unpacker.eof:
            raise self._broken_off("")

    def _received(self, size: int) -> bytes:
        try:
            return self._answer.read1(size)
        except (IncompleteRead, ConnectionError) as error:
            raise self._broken_off(f" of {self.promised:,}" if self.promised else "") from error

    def _unpacked(self, data: bytes) -> Iterator[bytes]:
        while data and self._unpacker is not None:
            if self._unpacker.eof:  # another one follows, as gzip allows
                self._unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)
            try:
                yield self._unpacker.decompress(data)
            except zlib.error as error:
                raise OddPackingError("is sent packed, and cannot be unpacked") from error
            data = self._unpacker.unused_data

    def _broken_off(self, of_all: str) -> BrokenOffError:
        return BrokenOffError(f"broke off after {self.received:,}{of_all} bytes")
