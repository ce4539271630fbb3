"""What a store's refusals and failures mean, in a clause, and what to do."""

from __future__ import annotations

import os
import re
from pathlib import Path

from forensics.errors import StoreError

_REFUSED = re.compile(
    r"ACCESS_DENIED|AccessDenied|INVALID_ACCESS_KEY|InvalidAccessKeyId|SIGNATURE_DOES_NOT_MATCH"
    r"|SignatureDoesNotMatch|ExpiredToken|EXPIRED_TOKEN|UNRECOGNIZED_CLIENT"
    r"|HTTP response code: 40[13]|Permission.?denied|UNAUTHENTICATED"
    r"|OAuth2 access token",
    re.IGNORECASE,
)
_NO_BUCKET = re.compile(r"NO_SUCH_BUCKET|NoSuchBucket|bucket does not exist", re.IGNORECASE)
_ELSEWHERE = re.compile(
    r"HTTP status 30[17]|PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint"
    r"|bucket is located in|the region .* is wrong",
    re.IGNORECASE,
)
_IN_TROUBLE = re.compile(
    r"SLOW_DOWN|SlowDown|Throttl|TooManyRequests|INTERNAL_FAILURE|InternalError"
    r"|SERVICE_UNAVAILABLE|ServiceUnavailable|HTTP status (?:429|5\d\d)",
    re.IGNORECASE,
)
_BROKE_OFF = re.compile(r"curlCode: (?:18|56)\b")
_NO_NETWORK = re.compile(
    r"NETWORK_CONNECTION|curlCode|(?:could|can)n?.t (?:connect|resolve)"
    r"|Connection (?:refused|reset)|Name or service not known|timed? ?out|UNAVAILABLE",
    re.IGNORECASE,
)
_CREDENTIALS = {
    "s3": (
        ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"),
        (".aws/credentials", ".aws/config"),
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    ),
    "gs": (
        ("GOOGLE_APPLICATION_CREDENTIALS",),
        (".config/gcloud/application_default_credentials.json",),
        "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS",
    ),
}
"""By scheme: where credentials may come from, and what gives some."""


class DeniedError(StoreError):
    """The store lets these credentials do something else at most."""


def as_store_error(error: Exception, scheme: str, where: str) -> StoreError:
    """What a file system says of itself, in a clause, with what to do."""
    text = str(error)
    if _NO_BUCKET.search(text):
        return StoreError("there is no such bucket", where=where, hint="check its name and region")
    if _REFUSED.search(text):
        return _refusal(scheme, where)
    if _ELSEWHERE.search(text):
        hint = "set AWS_REGION to the bucket's region, or write ?region=NAME after the path"
        return StoreError(f"lies in another region ({short(error)})", where=where, hint=hint)
    if _BROKE_OFF.search(text):
        return StoreError(f"broke off ({short(error)})", where=where, hint="read it again")
    if _IN_TROUBLE.search(text):
        what = f"the store is in trouble ({short(error)})"
        return StoreError(what, where=where, hint="try again later")
    if _NO_NETWORK.search(text):
        hint = "check the network, the proxy, and AWS_ENDPOINT_URL where one is set"
        return StoreError(f"cannot be reached ({short(error)})", where=where, hint=hint)
    return StoreError(f"cannot be read ({short(error)})", where=where)


def _refusal(scheme: str, where: str) -> StoreError:
    names, files, advice = _CREDENTIALS.get("gs" if scheme == "gcs" else scheme, ((), (), ""))
    there = any(map(os.environ.get, names)) or any((Path.home() / file).exists() for file in files)
    if there or not advice:
        hint = "the credentials in force may have expired, or are for something else"
        return DeniedError("access is denied", where=where, hint=hint)
    return DeniedError("access is denied and no credentials are set", where=where, hint=advice)


def short(error: Exception) -> str:
    """The last part of a long message: Arrow's begin with what was tried."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = text.rpartition(" operation: ")[2].partition("; Details:")[0]
    text = text.removeprefix("Unable to parse ExceptionName: ").replace(" Message: ", ": ", 1)
    return text[:200].rstrip(".")
