"""One file behind a web server, fetched whole: not every server gives parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse, RemoteDisconnected
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from forensics.errors import InputError, StoreError
from forensics.runlog.scanner.head import is_web_page
from forensics.runlog.stores.disk import keeping
from forensics.runlog.stores.patience import PATIENCE
from forensics.runlog.stores.traffic import TRAFFIC
from forensics.runlog.stores.uri import Uri
from forensics.runlog.stores.web_body import Body, BrokenOffError
from forensics.runlog.stores.web_refusals import SILENCE_S, as_told
from forensics.runlog.stores.web_request import opener, request_of

Progress = Callable[[int, int], None]
NO_LENGTH = "the server did not say how long the file is: had it broken off, nobody could tell"
_PAUSES_S = (0.5, 2.0)
"""Before the second and the third try."""
_MOST_PAUSE_S = 10.0
"""A server that wants to be left alone for longer is not asked again."""
_PASSING = frozenset((408, 425, 429, 500, 502, 503, 504))
_SLOW_AFTER_S, _SLOWEST = 60.0, 512
"""Seconds from which on a server must have given that many bytes for each."""
_PART = 256 << 10


def fetch(uri: Uri, target: Path, progress: Progress | None = None) -> bool:
    """Write what the server gives to a file; False where nobody could tell whether it is whole.

    A server that is in trouble, or breaks off, is asked three times.

    Args:
        uri: of the file.
        target: the file of this machine; replaced.
        progress: told the bytes fetched so far, and of how many.

    Raises:
        StoreError: it does not answer, refuses, gives only a part, or breaks off; or there is no
            room for the file here.
        InputError: it gives a page to look at, such as one to sign in.
    """
    for pause in (*_PAUSES_S, None):
        try:
            with PATIENCE.asked(uri.text):
                return _fetched(uri, target, progress)
        except (HTTPException, OSError, ValueError) as error:
            wait = _wait(error, pause)
            if wait is None:
                raise as_told(uri, error) from error
            time.sleep(wait)
    raise AssertionError("the last try returns or raises")


def _wait(error: Exception, pause: float | None) -> float | None:
    """Seconds until it is worth to ask again; None where it is not."""
    if isinstance(error, HTTPError):
        asked = error.headers.get("Retry-After", "") if error.headers else ""
        error.close()  # it is an answer, too
        wait = max(pause or 0.0, float(asked) if asked.isdecimal() else 0.0)
        passes = error.code in _PASSING and wait <= _MOST_PAUSE_S
        return wait if pause is not None and passes else None
    reason = error.reason if isinstance(error, URLError) else error
    passing = isinstance(reason, BrokenOffError | ConnectionResetError | RemoteDisconnected)
    return pause if passing else None


def _fetched(uri: Uri, target: Path, progress: Progress | None) -> bool:
    with opener().open(request_of(uri), timeout=SILENCE_S) as answer:
        if answer.status != 200:
            what = f"is not given whole (HTTP {answer.status} {answer.reason})"
            raise StoreError(what, where=uri.text, hint="open it in a browser")
        body = Body(answer, packed=uri.name.endswith((".gz", ".zst")))
        try:
            _keep(uri, answer, body, target, progress)
        finally:
            TRAFFIC.count(body.received)
            if progress is not None:
                progress(1, 1)  # so that what it has shown is wiped
        return body.tells_its_end


def _keep(
    uri: Uri, answer: HTTPResponse, body: Body, target: Path, progress: Progress | None
) -> None:
    began, at_start = time.monotonic(), True
    with keeping(target) as keep:
        for data in body.parts(_PART):
            if at_start and is_web_page(data):
                raise _page(uri, answer.geturl())
            at_start = at_start and not data
            keep(data)
            if progress is not None:
                progress(body.received, max(body.promised or 0, body.received + 1))
            seconds = time.monotonic() - began
            if seconds > _SLOW_AFTER_S and body.received < _SLOWEST * seconds:
                what = f"gives no more than {body.received / seconds:,.0f} bytes a second"
                raise StoreError(what, where=uri.text, hint="fetch it by other means")


def _page(uri: Uri, address: str) -> InputError:
    host, given = urlsplit(address).hostname, urlsplit(uri.text).hostname
    sent = f", where {given} sends on to {host}" if host != given else ""
    hint = "a page to sign in, or about the file? Give the address of the file itself"
    return InputError(f"is a web page, not a log{sent}", where=uri.text, hint=hint)
