"""One file behind a web server, fetched whole: not every server gives parts."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from forensics.errors import StoreError
from forensics.runlog.stores.traffic import TRAFFIC
from forensics.runlog.stores.uri import Uri

_PATIENCE_S = 30
_SAFE = "%/:?#[]@!$&'()*+,;=~"


def fetch(uri: Uri, target: Path) -> None:
    """Write what the server gives to a file.

    Raises:
        StoreError: it does not answer, refuses, or breaks off.
    """
    request = Request(quote(uri.text, safe=_SAFE), headers={"User-Agent": "forensics"})
    try:
        with urlopen(request, timeout=_PATIENCE_S) as answer, target.open("wb") as file:
            shutil.copyfileobj(answer, file)
            promised = answer.headers.get("Content-Length")
    except HTTPError as error:
        error.close()  # it is an answer, too
        hint = "check the address" if error.code in (404, 410) else "open it in a browser"
        raise StoreError(f"HTTP {error.code} {error.reason}", where=uri.text, hint=hint) from error
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        hint = "check the network and the proxy"
        raise StoreError(f"cannot be reached ({reason})", where=uri.text, hint=hint) from error
    size = target.stat().st_size
    TRAFFIC.count(size)
    if promised is not None and promised.isdecimal() and size < int(promised):
        what = f"broke off after {size:,} of {int(promised):,} bytes"
        raise StoreError(what, where=uri.text, hint="read it again")
