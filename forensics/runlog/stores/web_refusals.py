"""What a web server's refusals and failures mean, in a clause, and what to do."""

from __future__ import annotations

import ssl
from http.client import HTTPException, InvalidURL, RemoteDisconnected
from socket import gaierror
from urllib.error import HTTPError, URLError

from forensics.errors import StoreError, without_secrets
from forensics.runlog.stores.uri import Uri
from forensics.runlog.stores.web_body import BrokenOffError, OddPackingError

SILENCE_S = 30
"""Seconds that a server may say nothing."""
_NOT_WEB = "is redirected to what is no address of the web"
_NETWORK = "check the network and the proxy"
_LONGEST = 80
"""Characters of a server's own words that are told."""
_Words = tuple[str, str]


def as_told(uri: Uri, error: Exception) -> StoreError:
    """What went wrong, as the user is told it."""
    what, hint = _by_code(uri, error) if isinstance(error, HTTPError) else _words(uri, error)
    return StoreError(what, where=uri.text, hint=hint)


def _by_code(uri: Uri, error: HTTPError) -> _Words:
    said = f"HTTP {error.code} {str(error.reason)[:_LONGEST]}".strip()
    if 300 <= error.code < 400:
        circle = "infinite loop" in str(error.reason)
        return "is redirected without end" if circle else _NOT_WEB, "open it in a browser"
    if error.code in (401, 403):
        return f"access is denied ({said})", _access(uri)
    if error.code in (404, 410):
        return said, "check the address"
    if error.code == 429 or error.code >= 500:
        return f"the server is in trouble ({said})", "try again later"
    return said, "open it in a browser"


def _access(uri: Uri) -> str:
    if without_secrets(uri.text) == uri.text:
        return "give an address with a signature, or user:password@ before its host"
    return "check the user and password, or make a new signature: they expire"


def _words(uri: Uri, error: Exception) -> _Words:
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, BrokenOffError):
        return str(reason), "read it again"
    if isinstance(reason, OddPackingError):
        return str(reason), "fetch it by other means"
    if isinstance(reason, TimeoutError):
        return f"gave nothing for {SILENCE_S} s", "try again later, or " + _NETWORK
    if isinstance(reason, ssl.SSLCertVerificationError):
        what = f"has a certificate that is not trusted ({reason.verify_message})"
        return what, "set SSL_CERT_FILE to the certificates of whoever signed it"
    if isinstance(reason, ssl.SSLError):
        return f"gives no secure connection ({reason.reason})", "is it http:// that it speaks?"
    if isinstance(reason, InvalidURL | UnicodeError):
        return "is no address", "in a user or password / is written %2F, @ %40 and : %3A"
    if isinstance(reason, HTTPException) and not isinstance(reason, RemoteDisconnected):
        return "does not answer as a web server does", "check the address and the port"
    if isinstance(reason, OSError):
        what = f"cannot be reached ({reason})"
        return what, "check the name" if isinstance(reason, gaierror) else _NETWORK
    if isinstance(reason, str) and "unknown url type" in reason:
        return _NOT_WEB, "open it in a browser"
    return f"is no address ({reason})", "check the address"
