"""A small S3 on this machine: what reading needs of its protocol, every request counted.

It lists (version 2, with and without a delimiter, in pages), and gives objects whole or in
ranges. What goes wrong with real stores can be made to happen: a key that vanishes or changes
after so many requests, a refusal, a server that dies in the middle.
"""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from forensics.runlog.stores import store

PAGE = 1000
"""Keys a page, as S3 has it."""
_WHEN = 1_700_000_000


class S3:
    """Buckets in memory, and what was asked of them.

    Attributes:
        objects: contents by bucket and key.
        requests: method and path of each request, in order.
        sent: bytes of objects that were given.
        refuse: does it let nobody in?
        dead: does it hang up on everybody?
        halves: does it give the first half of a part only, and say no word of it?
        before: called with each request before it is answered.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], bytes] = {}
        self.requests: list[str] = []
        self.sent = 0
        self.refuse = self.dead = self.halves = False
        self.before: Callable[[S3, str], None] = lambda s3, request: None
        self.page = PAGE
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler_of(self))
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        thread.start()

    @property
    def endpoint(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def put(self, bucket: str, key: str, data: bytes) -> None:
        """Put an object there."""
        self.objects[bucket, key] = data

    def upload(self, folder: Path, bucket: str, prefix: str) -> None:
        """Put all files below a folder there."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                key = f"{prefix}/{path.relative_to(folder).as_posix()}"
                self.put(bucket, key, path.read_bytes())

    def forget(self) -> None:
        """Count from here on."""
        self.requests.clear()
        self.sent = 0

    def close(self) -> None:
        """Answer nobody any more."""
        self.dead = True
        self._server.shutdown()
        for connection in list(self._server.connections):
            with suppress(OSError):  # closed this moment
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()

    def count(self, request: str) -> None:
        """Note a request, and let ``before`` interfere."""
        with self._lock:
            self.requests.append(request)
            self.before(self, request)


@contextmanager
def running() -> Iterator[S3]:
    """A server for a while."""
    s3 = S3()
    try:
        yield s3
    finally:
        s3.close()


@contextmanager
def reached_alone(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[S3]:
    """A server that ``s3://`` means for a while, to whoever's credentials and settings."""
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "none"))
    monkeypatch.setattr(store, "_TRIES", 1)  # pauses between tries are nobody's test
    store._s3.cache_clear()  # a port may be given twice, and its old connections are dead
    with running() as s3:
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.endpoint)
        yield s3


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that closing waits for what is still being answered

    def __init__(self, *arguments: Any) -> None:
        self.connections: set[socket.socket] = set()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)


def _handler_of(s3_of_all: S3) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        s3 = s3_of_all

    return Handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    s3: S3

    def log_message(self, format: str, *args: Any) -> None:
        del format, args

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        split = urlsplit(self.path)
        bucket, _, key = unquote(split.path.lstrip("/")).partition("/")
        self.s3.count(f"{self.command} {bucket}/{key}{'?' if split.query else ''}{split.query}")
        if self.s3.dead:
            self.close_connection = True
        elif self.s3.refuse:
            self._error(403, "AccessDenied", "Access Denied")
        elif not any(there == bucket for there, _ in self.s3.objects):
            self._error(404, "NoSuchBucket", "The specified bucket does not exist")
        elif not key:
            self._list(bucket, parse_qs(split.query, keep_blank_values=True))
        elif (bucket, key) not in self.s3.objects:
            self._error(404, "NoSuchKey", "The specified key does not exist.")
        else:
            self._object(self.s3.objects[bucket, key])

    def _object(self, data: bytes) -> None:
        wanted, part, code = self.headers.get("Range"), data, 200
        if wanted:
            start, _, stop = wanted.removeprefix("bytes=").partition("-")
            first, last = int(start), min(int(stop or len(data)), len(data) - 1)
            if first >= len(data):
                self._error(416, "InvalidRange", "The requested range is not satisfiable")
                return
            last = (first + last) // 2 if self.s3.halves else last
            part, code = data[first : last + 1], 206
        self.send_response(code)
        if code == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("ETag", f'"{hashlib.md5(data).hexdigest()}"')
        self.send_header("Last-Modified", formatdate(_WHEN, usegmt=True))
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if self.command == "GET":
            self.s3.sent += len(part)
            self.wfile.write(part)

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        prefix, delimiter = (query.get(name, [""])[0] for name in ("prefix", "delimiter"))
        after = query.get("continuation-token", [""])[0]
        entries: dict[str, str] = {}
        for (home, key), data in sorted(self.s3.objects.items()):
            if home != bucket or not key.startswith(prefix):
                continue
            inner, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if cut:
                name = prefix + inner + cut
                entries[name] = f"<CommonPrefixes><Prefix>{_xml(name)}</Prefix></CommonPrefixes>"
            else:
                entries[key] = (
                    f"<Contents><Key>{_xml(key)}</Key><Size>{len(data)}</Size>"
                    "<LastModified>2023-11-14T22:13:20.000Z</LastModified></Contents>"
                )
        names = [name for name in entries if name > after]
        most = min(self.s3.page, int(query.get("max-keys", [str(PAGE)])[0]))
        more = len(names) > most
        token = (
            f"<NextContinuationToken>{_xml(names[most - 1])}</NextContinuationToken>"
            if more
            else ""
        )
        self._xml(
            200,
            f"<ListBucketResult><Name>{bucket}</Name><KeyCount>{len(names[:most])}</KeyCount>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}"
            f"{''.join(entries[name] for name in names[:most])}</ListBucketResult>",
        )

    def _error(self, code: int, name: str, message: str) -> None:
        self._xml(code, f"<Error><Code>{name}</Code><Message>{message}</Message></Error>")

    def _xml(self, code: int, text: str) -> None:
        data = f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)


def _xml(key: str) -> str:
    return escape(key, {"\n": "&#10;", "\r": "&#13;"})
