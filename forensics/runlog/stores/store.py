"""What a URI names: a file system of Arrow (S3, Google Cloud Storage), or one of fsspec."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

from forensics.errors import MissingExtraError, StoreError
from forensics.frozen import dataclass
from forensics.runlog.stores.patience import PATIENCE
from forensics.runlog.stores.refusals import as_store_error, short
from forensics.runlog.stores.traffic import TRAFFIC
from forensics.runlog.stores.uri import Uri

_CONNECT_S, _ANSWER_S = 10, 60
_S3 = ("s3", "s3a", "s3n")
"""With the names that Hadoop has for it."""
_WITH_BUCKETS = (*_S3, "gs", "gcs")
_TRIES = 3
"""How often S3 is asked before it is given up; the default of ten takes minutes."""


@dataclass(frozen=True)
class Entry:
    """An object or folder, as a listing tells it.

    Attributes:
        name: relative to what was listed, parts parted by slashes.
        size: bytes; None for a folder.
        mtime_ns: time of change, nanoseconds since 1970; 0 where it is not told.
    """

    name: str
    size: int | None
    mtime_ns: int = 0


class Store:
    """Read access to one file system of objects.

    Args:
        files: the file system.
        scheme: of the URIs that name it.
    """

    def __init__(self, files: fs.FileSystem, scheme: str) -> None:
        self._files = files
        self._scheme = scheme

    def listed(self, key: str, *, recursive: bool = False) -> list[Entry]:
        """What is in a folder; with ``recursive`` in those in it, too.

        Raises:
            FileNotFoundError, NotADirectoryError: there is no such folder.
            StoreError: the store does not answer, or refuses.
        """
        handler = getattr(self._files, "handler", None)
        if handler is not None:
            handler.fs.invalidate_cache()
        with self._told(key):
            infos = self._files.get_file_info(fs.FileSelector(key, recursive=recursive))
        TRAFFIC.count()
        cut = f"{key.rstrip('/')}/" if key else ""
        return [_entry(i, i.path.removeprefix(cut)) for i in infos if i.path.startswith(cut)]

    def find(self, key: str) -> Entry | None:
        """The object of that key; None where there is none, or it is a folder.

        Raises:
            StoreError: the store does not answer, or refuses.
        """
        with self._told(key):
            info = self._files.get_file_info(key)
        TRAFFIC.count()
        return _entry(info, key.rsplit("/", 1)[-1]) if info.type is fs.FileType.File else None

    def opened(self, key: str) -> Any:
        """An object, opened for reading: a ``pyarrow.NativeFile``.

        Raises:
            FileNotFoundError: there is no such object.
            StoreError: the store does not answer, or refuses.
        """
        with self._told(key):
            file = self._files.open_input_file(key)
        TRAFFIC.count()
        return file

    @contextmanager
    def _told(self, key: str) -> Iterator[None]:
        where = key if "://" in key else f"{self._scheme}://{key}"
        try:
            with PATIENCE.asked(where):
                yield
        except (FileNotFoundError, NotADirectoryError) as error:
            raise type(error)(error.errno or errno.ENOENT, "no such object", key) from error
        except Exception as error:
            raise as_store_error(error, self._scheme, where) from error


def open_store(uri: Uri) -> tuple[Store, str]:
    """What a URI names: the file system, and the key in it.

    Raises:
        StoreError: it cannot be opened.
        MissingExtraError: fsspec is needed and not installed, or what it needs for this scheme.
    """
    if uri.scheme in _WITH_BUCKETS and not uri.chained and not uri.key.split("/", 1)[0]:
        hint = f"write {uri.scheme}://bucket/path"  # Google would be asked for minutes
        raise StoreError("names no bucket", where=uri.text, hint=hint)
    try:
        if uri.scheme in _S3 and not uri.chained:
            return Store(_s3_of(uri), "s3"), uri.key
        if uri.scheme in ("gs", "gcs") and not uri.chained:
            limit = timedelta(seconds=_ANSWER_S)
            return Store(fs.GcsFileSystem(retry_time_limit=limit), "gs"), uri.key
    except (OSError, ValueError) as error:
        raise as_store_error(error, uri.scheme, uri.text) from error
    return _by_fsspec(uri)


def _s3_of(uri: Uri) -> fs.S3FileSystem:
    """S3, or what speaks its protocol at ``AWS_ENDPOINT_URL``; what the URI says goes first."""
    said, there = dict(uri.options), os.environ
    endpoint = urlsplit(there.get("AWS_ENDPOINT_URL_S3") or there.get("AWS_ENDPOINT_URL") or "")
    host = said.get("endpoint_override") or endpoint.netloc
    scheme = said.get("scheme") or (endpoint.scheme if host == endpoint.netloc else "") or "https"
    region = said.get("region") or there.get("AWS_REGION") or there.get("AWS_DEFAULT_REGION")
    region = region or ("us-east-1" if host else _region_of(uri.key.split("/", 1)[0]))
    anonymous = said.get("anonymous", "").lower() in ("1", "true", "yes")
    return _s3(host, scheme, region, anonymous)


@lru_cache(maxsize=64)
def _region_of(bucket: str) -> str | None:
    """The region that a bucket of Amazon's is in; None where it does not say."""
    TRAFFIC.count()
    with suppress(OSError):  # whoever reads from it will say what is wrong
        return str(fs.resolve_s3_region(bucket))
    return None


@lru_cache(maxsize=64)
def _s3(host: str, scheme: str, region: str | None, anonymous: bool) -> fs.S3FileSystem:
    return fs.S3FileSystem(
        anonymous=anonymous,
        endpoint_override=host or None,
        scheme=scheme,
        region=region,
        connect_timeout=_CONNECT_S,
        request_timeout=_ANSWER_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=_TRIES),
    )


def _by_fsspec(uri: Uri) -> tuple[Store, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        hint = "pip install fsspec"
        raise MissingExtraError("needs fsspec", where=uri.text, hint=hint) from None
    try:
        files, key = url_to_fs(uri.text)
    except FileNotFoundError as error:  # the archive, say, that it is to lie in
        raise StoreError("no such file or object", where=uri.text) from error
    except ImportError as error:  # it says which package to install
        raise MissingExtraError(short(error), where=uri.text) from None
    except ValueError as error:
        hint = "s3://, gs://, http(s):// and what fsspec knows can be read"
        raise StoreError(short(error), where=uri.text, hint=hint) from error
    except Exception as error:
        raise as_store_error(error, uri.scheme, uri.text) from error
    return Store(fs.PyFileSystem(fs.FSSpecHandler(files)), uri.scheme), key


def _entry(info: fs.FileInfo, name: str) -> Entry:
    folder = info.type is fs.FileType.Directory
    return Entry(name, None if folder else int(info.size or 0), int(info.mtime_ns or 0))
