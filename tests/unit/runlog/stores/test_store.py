"""What stores say of themselves, in a clause; and how a URI chooses one."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pyarrow import fs

from forensics.errors import InputError, MissingExtraError, StoreError
from forensics.runlog.stores.refusals import as_store_error
from forensics.runlog.stores.store import open_store
from forensics.runlog.stores.uri import Uri
from tests.unit.runlog.stores.s3_server import S3

HEAD = (
    "When getting information for key 'x' in bucket 'b': AWS Error {} during HeadObject operation: "
)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (HEAD.format("ACCESS_DENIED") + "No response body.", "access is denied"),
        (HEAD.format("UNKNOWN (HTTP status 400)") + "InvalidAccessKeyId", "access is denied"),
        (
            "google::cloud::Status(UNAVAILABLE: Could not create a OAuth2 access token to "
            "authenticate the request.)",
            "access is denied",
        ),
        (HEAD.format("NO_SUCH_BUCKET") + "It does not exist", "there is no such bucket"),
        (
            HEAD.format("NETWORK_CONNECTION") + "curlCode: 7, Could not connect to server; "
            "Details: Failed to connect to 127.0.0.1:1 after 0 ms",
            "cannot be reached (curlCode: 7, Could not connect to server)",
        ),
        (HEAD.format("SLOW_DOWN") + "Reduce it.", "the store is in trouble (Reduce it); try again"),
        (
            HEAD.format("UNKNOWN (HTTP status 429)")
            + "Unable to parse ExceptionName: TooManyRequests Message: no",
            "the store is in trouble (TooManyRequests: no); try again later",
        ),
        (
            HEAD.format("UNKNOWN (HTTP status 301)") + "No response body.",
            "lies in another region (No response body); set AWS_REGION to the bucket's region",
        ),
        (
            HEAD.format("NETWORK_CONNECTION") + "curlCode: 18, Transferred a partial file",
            "broke off (curlCode: 18, Transferred a partial file); read it again",
        ),
        ("", "cannot be read (OSError)"),
        ("x" * 5000, f"cannot be read ({'x' * 200})"),
    ],
)
def test_a_message_becomes_a_clause(text: str, what: str) -> None:
    error = as_store_error(OSError(text), "s3", "s3://b/x")
    assert error.line().startswith(f"s3://b/x: {what}")
    assert "\n" not in error.line()


@pytest.mark.parametrize(
    ("scheme", "advice"), [("s3", "AWS_PROFILE"), ("gs", "gcloud auth"), ("gcs", "gcloud auth")]
)
def test_who_has_no_credentials_is_told_where_to_get_some(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scheme: str, advice: str
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    denied = OSError("ACCESS_DENIED")
    assert advice in as_store_error(denied, scheme, "x").line()
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").touch()
    assert ("no credentials" in as_store_error(denied, scheme, "x").what) == (scheme != "s3")


def test_a_path_may_name_the_endpoint_itself(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put("bucket", "x", b"here")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    host = urlsplit(s3.endpoint).netloc
    store, key = open_store(Uri.parsed(f"s3://bucket/x?endpoint_override={host}&scheme=http"))
    assert store.opened(key).read() == b"here"


def test_what_fsspec_needs_for_a_scheme_is_named() -> None:
    registry = pytest.importorskip("fsspec.registry")
    missing = {"class": "no_such_package.Files", "err": "Please install no-such-package"}
    registry.known_implementations["missing"] = missing
    try:
        with pytest.raises(MissingExtraError, match="missing://x: Please install no-such-package"):
            open_store(Uri.parsed("missing://x"))
    finally:
        del registry.known_implementations["missing"]


def test_a_chain_of_fsspec_reads_a_file_in_an_archive(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    import zipfile

    from forensics.runlog.run import load_run

    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as archive:
        archive.writestr("steps.csv", "step,loss\n0,3\n1,2\n2,1\n")
    uri = f"zip://steps.csv::file://{tmp_path}/logs.zip"
    run = load_run(uri)
    assert len(run.steps) == 3
    assert run.named() == uri
    for whole in (f"zip://::file://{tmp_path}/logs.zip", f"zip://steps.csv::{tmp_path}/logs.zip"):
        assert load_run(whole).named() == whole
    with pytest.raises(StoreError, match=r"none.zip: no such file or object"):
        load_run(f"zip://steps.csv::file://{tmp_path}/none.zip")


def test_a_uri_of_a_file_that_names_a_machine_is_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forensics.runlog.run import load_run

    monkeypatch.chdir(tmp_path)
    (tmp_path / "steps.csv").write_text("step,loss\n0,3\n1,2\n2,1\n")
    with pytest.raises(InputError, match=r"names the machine 'steps.csv'; .* or just steps.csv"):
        load_run("file://steps.csv")
    assert len(load_run((tmp_path / "steps.csv").as_uri()).steps) == 3


@pytest.mark.parametrize("text", ["gs://", "gs:///x", "s3://", "S3:///x/y", "gcs://"])
def test_no_bucket_is_asked_for_where_none_is_named(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fs, "GcsFileSystem", lambda **_: pytest.fail("Google is asked"))
    monkeypatch.setattr(fs, "S3FileSystem", lambda **_: pytest.fail("Amazon is asked"))
    with pytest.raises(StoreError) as refused:
        open_store(Uri.parsed(text))
    scheme = text.partition(":")[0].lower()
    assert "names no bucket" in refused.value.line()
    assert refused.value.line().endswith(f"write {scheme}://bucket/path")
