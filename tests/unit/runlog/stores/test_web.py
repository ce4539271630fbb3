"""One file behind a web server of this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from forensics.errors import InputError, StoreError
from forensics.runlog.run import load_run

LOG = b"step,loss\n0,3\n1,2\n2,1\n"
PAGES = {
    "/steps.csv?token=1": (200, LOG, len(LOG)),
    "/a%20b.csv": (200, LOG, len(LOG)),
    "/broken.csv": (200, LOG, 1000),
    "/page.html": (200, b"<!doctype html><p>Sign in</p>\n", 30),
    "/closed.csv": (403, b"", 0),
}


class Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        del format, args

    def do_GET(self) -> None:
        code, data, length = PAGES.get(self.path, (404, b"", 0))
        self.send_response(code)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(data)


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


@pytest.mark.parametrize("name", ["steps.csv?token=1", "a b.csv", "a%20b.csv"])
def test_a_log_is_fetched(web: str, name: str) -> None:
    run = load_run(f"{web}/{name}")
    assert len(run.steps) == 3
    assert run.named() == f"{web}/{name}"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("none.csv", "HTTP 404 Not Found; check the address"),
        ("closed.csv", "HTTP 403 Forbidden; open it in a browser"),
        ("broken.csv", "broke off after 22 of 1,000 bytes; read it again"),
    ],
)
def test_what_goes_wrong_is_one_line(web: str, name: str, what: str) -> None:
    with pytest.raises(StoreError) as told:
        load_run(f"{web}/{name}")
    assert told.value.line() == f"{web}/{name}: {what}"


def test_a_page_is_no_log(web: str) -> None:
    with pytest.raises(InputError, match=f"^{web}/page.html: "):
        load_run(f"{web}/page.html")


def test_nobody_there_is_told_so() -> None:
    with pytest.raises(StoreError, match=r"cannot be reached .*refused"):
        load_run("http://127.0.0.1:9/x.csv")
