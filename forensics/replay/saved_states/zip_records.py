"""Where the records of an uncompressed zip archive lie, as ``torch.save`` writes it.

Only the directory at the archive's end is read; sizes in it are checked against the file, so that
no claim in it can make anybody allocate. Format: PKWARE's APPNOTE 6.3, sections 4.3 and 4.5.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from forensics.errors import InputError
from forensics.replay.saved_states.mapped_file import MappedFile

LARGEST_DIRECTORY = 64 << 20
"""Bytes: about 600,000 records."""
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_LARGEST_COMMENT = 0xFFFF
_IN_EXTRA = 0xFFFFFFFF
_STORED = 0


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a mapped file that holds an archive of its own."""

    file: MappedFile
    start: int
    length: int

    def read(self, start: int, length: int) -> bytes:
        """Bytes of the window, within it and within the file."""
        if start < 0 or start + length > self.length:
            raise InputError("is cut off or damaged", where=self.file.path)
        return self.file.read(self.start + start, length)


@dataclass(frozen=True, slots=True)
class Record:
    """A record's bytes in the file."""

    start: int
    length: int


def records(window: Window) -> dict[str, Record]:
    """The records by name, without the archive's own folder: ``data.pkl``, ``data/0``.

    Raises:
        InputError: it is no whole zip archive, or compressed, which ``torch.save`` never does.
    """
    start, length = _directory(window)
    if length > LARGEST_DIRECTORY:
        raise InputError(f"has a zip directory of {length:,} bytes", where=window.file.path)
    directory = window.read(start, length)
    found: dict[str, Record] = {}
    at = 0
    try:
        while at < length:
            fields = _ENTRY.unpack_from(directory, at)
            if fields[0] != b"PK\x01\x02":
                raise ValueError("no entry")
            name_end = at + _ENTRY.size + fields[10]
            name = directory[at + _ENTRY.size : name_end].decode("utf-8", "replace")
            extra = directory[name_end : name_end + fields[11]]
            found[name.partition("/")[2]] = _record(window, name, fields, extra)
            at = name_end + fields[11] + fields[12]
    except (struct.error, ValueError, IndexError) as error:
        raise InputError("has a damaged zip directory", where=window.file.path) from error
    return found


def _directory(window: Window) -> tuple[int, int]:
    """Start and length of the central directory within the window."""
    tail = min(window.length, _LARGEST_COMMENT + _END.size)
    text = window.read(window.length - tail, tail)
    found = text.rfind(b"PK\x05\x06")
    if found < 0 or found + _END.size > tail:
        raise InputError("is cut off: the zip directory at its end is gone", where=window.file.path)
    length, start = _END.unpack_from(text, found)[5:7]
    end = window.length - tail + found
    if end >= _LOCATOR.size:
        signature, _, at, _ = _LOCATOR.unpack(window.read(end - _LOCATOR.size, _LOCATOR.size))
        if signature == b"PK\x06\x07":
            length, start = _END_64.unpack(window.read(at, _END_64.size))[8:10]
    return start, length


def _record(window: Window, name: str, fields: tuple[int, ...], extra: bytes) -> Record:
    """One entry's bytes, by the header that stands before them."""
    method, packed, size, header = fields[4], fields[8], fields[9], fields[16]
    packed, size, header = _wide(extra, packed, size, header)
    if method != _STORED or packed != size:
        raise InputError(
            f"holds a compressed record ({name[:60]}), which torch.save never writes",
            where=window.file.path,
        )
    local = _LOCAL.unpack(window.read(header, _LOCAL.size))
    if local[0] != b"PK\x03\x04":
        raise ValueError("no local header")
    start = header + _LOCAL.size + local[9] + local[10]
    if start + size > window.length:
        raise InputError(f"is cut off: {name[:60]} is not whole", where=window.file.path)
    return Record(window.start + start, size)


def _wide(extra: bytes, packed: int, size: int, header: int) -> tuple[int, int, int]:
    """Sizes and offset with those of the zip64 extra field, in the order the format gives them."""
    at = 0
    while at + 4 <= len(extra):
        tag, length = struct.unpack_from("<2H", extra, at)
        if tag == 1:
            numbers = list(struct.unpack_from(f"<{length // 8}Q", extra, at + 4))
            size = numbers.pop(0) if size == _IN_EXTRA else size
            packed = numbers.pop(0) if packed == _IN_EXTRA else packed
            header = numbers.pop(0) if header == _IN_EXTRA else header
        at += 4 + length
    return packed, size, header
