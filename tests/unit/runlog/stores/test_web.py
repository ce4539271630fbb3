"""One file behind a web server of this machine."""

from __future__ import annotations

import gzip
import threading
import zlib
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, ClassVar

import pyarrow.parquet as pq
import pytest

from forensics.cli import main
from forensics.errors import InputError, StoreError
from forensics.runlog.run import load_run
from forensics.runlog.stores import web as web_module

LOG = b"step,loss\n0,3\n1,2\n2,1\n"
PACKED = gzip.compress(LOG)
MANY = PACKED + gzip.compress(b"3,1\n")
CHUNKED = b"9\r\nstep,loss\r\n" + b"d\r\n\n0,3\n1,2\n2,1\n\r\n0\r\n\r\n"
PAGE = b"\n<!DOCTYPE html><pre>step,loss\n0,3\n1,2\n</pre>\n"
GZIP = {"Content-Encoding": "gzip"}
Answer = tuple[int, bytes, dict[str, str]]
ANSWERS: dict[str, Answer] = {
    "/steps.csv?token=1": (200, LOG, {}),
    "/steps.csv?token=hunter2": (200, LOG, {}),
    "/slash/?a=b/": (200, LOG, {}),
    "/a%20b.csv": (200, LOG, {}),
    "/broken.csv": (200, LOG, {"Content-Length": "1000"}),
    "/broken.csv?sig=hunter2": (200, LOG, {"Content-Length": "1000"}),
    "/page.csv": (200, PAGE, {}),
    "/closed.csv": (403, b"", {}),
    "/busy.csv": (429, b"", {"Retry-After": "100"}),
    "/part.csv": (206, LOG, {}),
    "/packed.csv": (200, MANY, GZIP),
    "/zlib.csv": (200, zlib.compress(LOG), {"Content-Encoding": "deflate"}),
    "/unpacked.csv": (200, LOG, GZIP),
    "/packed.csv.gz": (200, PACKED, GZIP),
    "/torn.csv": (200, PACKED[:-9], GZIP),
    "/odd.csv": (200, b"?", {"Content-Encoding": "br"}),
    "/chunked.csv": (200, CHUNKED, {"Transfer-Encoding": "chunked"}),
    "/cut.csv": (200, CHUNKED[:20], {"Transfer-Encoding": "chunked"}),
    "/untold.csv": (200, LOG, {"Content-Length": ""}),
    "/circle.csv": (302, b"", {"Location": "/circle.csv"}),
    "/outside.csv": (302, b"", {"Location": "ftp://127.0.0.1/x.csv"}),
    "/weak.csv": (200, LOG, {}),
    "/mine/log.csv": (200, LOG, {}),
    "/mine/moved.csv": (302, b"", {"Location": "/mine/log.csv"}),
    "/moved.csv": (302, b"", {"Location": "../a%20b.csv"}),
}


class Handler(BaseHTTPRequestHandler):
    asked: ClassVar[list[tuple[str, str]]] = []

    def log_message(self, format: str, *args: object) -> None:
        del format, args

    def do_GET(self) -> None:
        signer = self.headers.get("Authorization", "")
        self.asked.append((self.path, signer))
        if self.path == "/gibberish.csv":
            self.wfile.write(b"SSH-2.0-server\r\n")
            return
        code, data, headers = self.answer(signer)
        self.send_response(code)
        told = {"Content-Length": str(len(data)), **headers}
        if "Transfer-Encoding" in told:
            del told["Content-Length"]
        for name, value in told.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def answer(self, signer: str) -> Answer:
        if self.path.startswith("/mine/") and not signer:
            return 401, b"", {}
        if self.path == "/mine/away.csv":
            port = self.server.server_port  # type: ignore[attr-defined]
            return 302, b"", {"Location": f"http://localhost:{port}/a%20b.csv"}
        if self.path == "/weak.csv" and len(self.asked_for("/weak.csv")) < 3:
            return 503, b"", {}
        return ANSWERS.get(self.path, (404, b"", {}))

    @classmethod
    def asked_for(cls, path: str) -> list[str]:
        """Who signed each request for a path."""
        return [signer for asked, signer in cls.asked if asked == path]


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(web_module, "_PAUSES_S", (0.0, 0.0))
    Handler.asked.clear()


@pytest.mark.parametrize(
    "name",
    [
        "a b.csv",
        "a%20b.csv",
        "slash/?a=b/",
        "zlib.csv",
        "unpacked.csv",
        "packed.csv.gz",
        "chunked.csv",
        "moved.csv",
    ],
)
def test_a_log_is_fetched(web: str, name: str) -> None:
    run = load_run(f"{web}/{name}")
    assert run.steps["loss"].tolist() == [3, 2, 1]
    assert run.named() == f"{web}/{name}"
    assert run.steps.facts is None or not run.steps.facts.notes


def test_all_that_is_packed_is_unpacked(web: str) -> None:
    assert load_run(f"{web}/packed.csv").steps["loss"].tolist() == [3, 2, 1, 1]


def test_whether_all_came_is_said_to_be_unknown_where_the_server_tells_no_length(web: str) -> None:
    facts = load_run(f"{web}/untold.csv").steps.facts
    assert facts is not None
    assert facts.notes == (web_module.NO_LENGTH,)


def test_what_signs_an_address_is_sent_and_not_told(web: str) -> None:
    run = load_run(f"{web}/steps.csv?token=1")
    assert run.named() == f"{web}/steps.csv?token=…"
    mine = web.replace("://", "://me:pa%20ss@")
    run = load_run(f"{mine}/mine/moved.csv")
    assert run.named() == f"{web.replace('://', '://…@')}/mine/moved.csv"
    expected = f"Basic {b64encode(b'me:pa ss').decode()}"
    assert Handler.asked_for("/mine/log.csv") == [expected]
    load_run(f"{mine}/mine/away.csv")
    assert Handler.asked_for("/a%20b.csv") == [""]


@pytest.mark.parametrize("form", ["text", "json", "markdown"])
def test_a_table_and_its_catalogue_tell_no_signature(
    web: str, form: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "c.parquet"
    place = f"{web}/steps.csv?token=hunter2"
    assert main(["scan", place, "--format", form, "--catalogue", str(kept), "-j1"]) == 0
    told = "".join(capfd.readouterr())
    assert "hunter2" not in told
    assert "hunter2" not in str(pq.read_table(kept).to_pylist())


def test_a_server_in_trouble_is_asked_three_times(web: str) -> None:
    assert len(load_run(f"{web}/weak.csv").steps) == 3
    assert len(Handler.asked_for("/weak.csv")) == 3


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("none.csv", "HTTP 404 Not Found; check the address"),
        ("busy.csv", "the server is in trouble (HTTP 429 Too Many Requests); try again later"),
        ("part.csv", "is not given whole (HTTP 206 Partial Content); open it in a browser"),
        ("broken.csv", "broke off after 22 of 1,000 bytes; read it again"),
        ("torn.csv", f"broke off after {len(PACKED) - 9} bytes; read it again"),
        ("cut.csv", "broke off after 12 bytes; read it again"),
        ("odd.csv", "is sent packed as 'br', which was not asked for; fetch it by other means"),
        ("circle.csv", "is redirected without end; open it in a browser"),
        ("outside.csv", "is redirected to what is no address of the web; open it in a browser"),
        ("gibberish.csv", "does not answer as a web server does; check the address and the port"),
        (
            "closed.csv",
            "access is denied (HTTP 403 Forbidden); give an address with a signature, or "
            "user:password@ before its host",
        ),
    ],
)
def test_what_goes_wrong_is_one_line(web: str, name: str, what: str) -> None:
    with pytest.raises(StoreError) as told:
        load_run(f"{web}/{name}")
    assert told.value.line() == f"{web}/{name}: {what}"


def test_what_goes_wrong_tells_no_signature(web: str) -> None:
    with pytest.raises(StoreError) as told:
        load_run(f"{web}/broken.csv?sig=hunter2")
    assert told.value.line().startswith(f"{web}/broken.csv?sig=…: broke off")


@pytest.mark.parametrize("address", ["http://me:a/b@127.0.0.1/x", "http://a b/x", "http://[x/y"])
def test_what_is_no_address_is_told_so(address: str) -> None:
    with pytest.raises(StoreError, match="is no address"):
        load_run(address)


def test_a_page_is_no_log_whatever_is_in_it(web: str) -> None:
    with pytest.raises(InputError, match=f"^{web}/page.csv: is a web page, not a log"):
        load_run(f"{web}/page.csv")


def test_who_gives_a_few_bytes_for_ever_is_not_waited_for(
    web: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_module, "_SLOW_AFTER_S", -1.0)
    monkeypatch.setattr(web_module, "_SLOWEST", 10**9)
    with pytest.raises(StoreError, match=r"gives no more than .* bytes a second"):
        load_run(f"{web}/a%20b.csv")


def test_a_full_disk_is_not_the_servers_fault(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, mode: str) -> IO[bytes]:
        return open("/dev/full", mode)

    if not Path("/dev/full").exists():
        pytest.skip("no device is full here")
    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(StoreError, match=r"cannot be kept .No space left on device.; make room"):
        load_run(f"{web}/a%20b.csv")


def test_nobody_there_is_told_so() -> None:
    with pytest.raises(StoreError, match=r"cannot be reached .*refused"):
        load_run("http://127.0.0.1:9/x.csv")
