"""The bytes of a log as blocks of whole lines: decompressed, in UTF-8, with crashes marked."""

from __future__ import annotations

import codecs
import os
import re
import select
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from forensics.errors import InputError
from forensics.runlog.csv_reader.repair_log import RepairLog
from forensics.runlog.csv_reader.spans import opened

BLOCK = 2 << 20
"""Bytes a block, and the longest line."""
NUL_MARK = b"\0"
"""Ends a line that a run of NUL bytes cut off: what precedes it is torn."""
Tell = Callable[[int], None]
_WARM_UP = 24 << 20
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
PACKED = (_GZIP, _ZSTD)
"""How compressed files begin."""
_BOMB_SIZE = 256 << 20
_BOMB_RATIO = 250
"""A gzip file grows at most 1,032-fold; logs of numbers grow 3- to 20-fold."""
_PATIENCE = 5.0
"""Seconds in which somebody has to write into a named pipe."""
_NUL_RUN = re.compile(rb"\0+")
_MAGIC = {
    b"PK\x03\x04": "a zip archive or a saved state",
    b"PAR1": "a Parquet file",
    b"\x80\x02": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x89PNG": "a picture",
    b"\x7fELF": "a program",
    b"%PDF": "a PDF document",
    b"ARROW1": "an Arrow file",
    b"\xfd7zXZ": "an xz-compressed file",
    b"BZh": "a bzip2-compressed file",
}


def read_lines(path: Path, log: RepairLog, tell: Tell | None = None) -> Iterator[bytes]:
    """Blocks of whole lines; only the very last one may lack its newline (a torn line).

    Line ends are newlines (a carriage return before one stays). A run of NUL bytes becomes
    ``NUL_MARK`` and a newline, so that what a crash tore off is not glued to what came after.

    Raises:
        InputError: it cannot be opened or is no text.
    """
    yield from _whole_lines(read_chunks(path, log, tell), path, log)


def read_chunks(path: Path, log: RepairLog, tell: Tell | None = None) -> Iterator[bytes]:
    """The file in chunks of at most ``BLOCK``, out of gzip or zstd where it is in it, in UTF-8.

    Args:
        path: the file.
        log: where it is noted what had to be mended.
        tell: told how many bytes of the file are read, as they are on disk.

    Raises:
        InputError: it cannot be opened or decompressed, or is no text.
    """
    _keep_blocks_mapped()
    try:
        with _opened(path) as file:
            yield from _in_utf8(_decompressed(file, path, log, tell), path, log)
    except OSError as error:
        raise InputError(error.strerror or str(error), where=path) from error


def _opened(path: Path) -> BinaryIO:
    """The file; a named pipe only where somebody writes to it, or the wait would have no end."""
    if path.is_char_device():  # /dev/zero has no end either
        raise InputError("is a device, not a file", where=path)
    anonymous = "pipe:[" in os.path.realpath(path)  # <(zcat …): its writer is there, if slow
    if anonymous or not path.is_fifo():
        return opened(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not select.select([descriptor], [], [], _PATIENCE)[0]:
        os.close(descriptor)
        raise InputError("is a pipe that nobody writes to", where=path)
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "rb")


@cache
def _keep_blocks_mapped() -> None:
    """Free one large untouched block: until then glibc maps each block of a file anew.

    That costs a page fault per 4 KiB read, as much time as a fifth of the parsing.
    """
    bytes(_WARM_UP)


def _decompressed(file: BinaryIO, path: Path, log: RepairLog, tell: Tell | None) -> Iterator[bytes]:
    """The file's bytes in chunks of at most ``BLOCK``, out of gzip where they are in it."""
    first = file.read(BLOCK)
    chunks = chain([first], _rest(file, tell)) if first else iter(())
    if not first.startswith(PACKED):
        yield from chunks
        return
    size = 0
    members = _members if first.startswith(_GZIP) else _frames
    for part in members(chunks, path, log):
        size += len(part)
        if size > _BOMB_SIZE and size > file.tell() * _BOMB_RATIO:
            raise InputError("grows beyond reason when decompressed", where=path)
        yield part


def _rest(file: BinaryIO, tell: Tell | None) -> Iterator[bytes]:
    done = BLOCK
    while chunk := file.read(BLOCK):
        if tell is not None:
            tell(done)
        done += len(chunk)
        yield chunk


def _members(chunks: Iterator[bytes], path: Path, log: RepairLog) -> Iterator[bytes]:
    """What is in the members of a gzip file, one after the other, as far as they are whole."""
    stream = zlib.decompressobj(wbits=31)
    started = anything = False
    for chunk in chunks:
        data, full = chunk, False
        while data or full:
            try:
                part = stream.decompress(data, BLOCK)
            except zlib.error as error:
                if not anything:
                    raise InputError("is damaged: it cannot be decompressed", where=path) from error
                log.note("torn-gzip")
                return
            if part:
                yield part
            anything = anything or bool(part)
            started, full, data = True, len(part) == BLOCK, stream.unconsumed_tail
            if stream.eof:
                data = stream.unused_data.lstrip(b"\0")  # some writers pad with zeros
                stream, started, full = zlib.decompressobj(wbits=31), False, False
    if started:
        log.note("torn-gzip")


def _frames(chunks: Iterator[bytes], path: Path, log: RepairLog) -> Iterator[bytes]:
    """What is in the frames of a zstd file, as far as they are whole."""
    stream = pa.CompressedInputStream(pa.PythonFile(_Chunks(chunks), mode="r"), "zstd")
    anything = False
    while True:
        try:
            part = stream.read(BLOCK)
        except (OSError, pa.ArrowException) as error:
            if not anything:
                raise InputError("is damaged: it cannot be decompressed", where=path) from error
            log.note("torn-gzip")
            return
        if not part:
            return
        anything = True
        yield part


class _Chunks:
    """Chunks of bytes as the file that Arrow reads from."""

    closed = False

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = b""

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; none at the end."""
        self._left = self._left or next(self._chunks, b"")
        part, self._left = self._left[:size], self._left[size:]
        return part

    def close(self) -> None:
        """Nothing to do: who opened the file closes it."""


def _in_utf8(chunks: Iterator[bytes], path: Path, log: RepairLog) -> Iterator[bytes]:
    first = next(chunks, b"")
    for magic, what in _MAGIC.items():
        if first.startswith(magic):
            raise InputError(f"is {what}, not a CSV", where=path)
    encoding = _encoding(first)
    if encoding is None:
        if first.startswith(codecs.BOM_UTF8):
            log.note("byte-order-mark")
            first = first[len(codecs.BOM_UTF8) :]
        yield first
        yield from chunks
        return
    log.note("other-encoding", detail=encoding.upper())
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    yield decoder.decode(first).removeprefix("\ufeff").encode("utf-8", errors="replace")
    for chunk in chunks:
        yield decoder.decode(chunk).encode("utf-8", errors="replace")
    yield decoder.decode(b"", final=True).encode("utf-8", errors="replace")


def _encoding(head: bytes) -> str | None:
    """UTF-16 by its mark, or by every other byte being zero; None for anything else."""
    if head.startswith(codecs.BOM_UTF16_LE):
        return "utf-16-le"
    if head.startswith(codecs.BOM_UTF16_BE):
        return "utf-16-be"
    sample = head[:64]
    if len(sample) >= 8 and not any(sample[1::2]) and all(sample[0::2]):
        return "utf-16-le"
    if len(sample) >= 8 and not any(sample[0::2]) and all(sample[1::2]):
        return "utf-16-be"
    return None


def _whole_lines(chunks: Iterator[bytes], path: Path, log: RepairLog) -> Iterator[bytes]:
    carry = b""
    bare_returns: bool | None = None
    for chunk in chunks:
        if not chunk:
            continue
        if bare_returns is None:
            bare_returns = b"\n" not in chunk and b"\r" in chunk
            if bare_returns:
                log.note("cr-line-ends")
        if bare_returns:
            chunk = chunk.replace(b"\r", b"\n")
        if b"\0" in chunk:
            log.note("nul-bytes", count=chunk.count(b"\0"))
            chunk = _NUL_RUN.sub(NUL_MARK + b"\n", chunk)
        cut = chunk.rfind(b"\n") + 1
        if cut == 0:
            carry += chunk
            if len(carry) > BLOCK:
                raise InputError(f"has a line of more than {BLOCK >> 20} MiB", where=path)
            continue
        yield b"".join((carry, memoryview(chunk)[:cut]))
        carry = chunk[cut:]
    if carry:
        yield carry
