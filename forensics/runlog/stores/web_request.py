"""How a file is asked for on the web: who asks, by which address, and where answers may lead."""

from __future__ import annotations

from base64 import b64encode
from typing import Any
from urllib.parse import quote, unquote, urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from forensics.runlog.stores.uri import Uri

_SAFE = "%/:?#[]@!$&'()*+,;=~"
_SIGNED = "Authorization"


def request_of(uri: Uri) -> Request:
    """The request for a file; a user and password in its address sign it.

    Raises:
        ValueError: it is no address.
    """
    split = urlsplit(uri.text)
    signer, at, host = split.netloc.rpartition("@")
    if not host.isascii():
        host = host.encode("idna").decode()
    address = split._replace(netloc=host).geturl()
    request = Request(quote(address, safe=_SAFE), headers={"User-Agent": "forensics"})
    if at:
        user, _, password = signer.partition(":")
        pair = f"{unquote(user)}:{unquote(password)}".encode()
        request.add_unredirected_header(_SIGNED, f"Basic {b64encode(pair).decode()}")
    return request


class _Redirects(HTTPRedirectHandler):
    """Takes the password along to the same server, and to no other."""

    def redirect_request(
        self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        """The next request; None where there may be none."""
        further = super().redirect_request(req, fp, code, msg, headers, newurl)
        if further is not None and urlsplit(newurl)[:2] == urlsplit(req.full_url)[:2]:
            further.unredirected_hdrs.update(req.unredirected_hdrs)
        return further


_HANDLERS: tuple[type[Any], ...] = (
    ProxyHandler,
    UnknownHandler,
    HTTPHandler,
    HTTPSHandler,
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    _Redirects,
)
"""Not Python's own choice, which opens ftp:// and file:// where an answer leads there."""


def opener() -> OpenerDirector:
    """What opens requests; proxies are those that the environment names now."""
    director = OpenerDirector()
    for handler in _HANDLERS:
        director.add_handler(handler())
    return director
