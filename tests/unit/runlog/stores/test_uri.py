"""What is a URI, and its parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.runlog.stores.scheme import is_uri
from forensics.runlog.stores.uri import Uri


@pytest.mark.parametrize(
    "text", ["s3://b/x", "gs://b", "memory://x", "https://h/x.csv", "zip://a.csv::s3://b/z.zip"]
)
def test_a_uri_is_known(text: str) -> None:
    assert is_uri(text)


@pytest.mark.parametrize("text", ["runs/x", "/a/b", "C:\\x", "C://x", "a:b", "1://x", "-", "a::b"])
def test_a_path_is_none(text: str) -> None:
    assert not is_uri(text)
    assert not is_uri(Path(text))


def test_keys_are_taken_as_they_stand() -> None:
    uri = Uri.parsed("s3://bucket/a b/%20/ü?x#y/")
    assert (uri.scheme, uri.key, uri.name) == ("s3", "bucket/a b/%20/ü?x#y", "ü?x#y")
    assert uri.parent.text == "s3://bucket/a b/%20"
    assert uri.below("params/1") == "s3://bucket/a b/%20/ü?x#y/params/1"


def test_options_go_with_every_place_below() -> None:
    uri = Uri.parsed("S3://b/runs/?region=eu-west-1&scheme=http")
    assert (uri.scheme, uri.address) == ("s3", "S3://b/runs")
    assert dict(uri.options) == {"region": "eu-west-1", "scheme": "http"}
    assert uri.below("x") == "S3://b/runs/x?region=eu-west-1&scheme=http"
    assert uri.below(".") == uri.text


def test_what_a_chain_goes_on_with_goes_with_every_place() -> None:
    uri = Uri.parsed("zip://logs/a.csv::s3://b/x.zip")
    assert uri.chained
    assert (uri.key, uri.name) == ("logs/a.csv", "a.csv")
    assert uri.parent.text == "zip://logs::s3://b/x.zip"
    assert uri.parent.parent.below("b.csv") == "zip://b.csv::s3://b/x.zip"
    here = Uri.parsed("zip://logs/a.csv::/home/x.zip")
    assert (here.name, here.parent.below("b.csv")) == ("a.csv", "zip://logs/b.csv::/home/x.zip")
    assert Uri.parsed("simplecache::s3://b/x").chained
    assert not Uri.parsed("s3://b/a::/b").chained
    assert not Uri.parsed("s3://b/a::b").chained


def test_a_file_on_the_web_is_called_without_its_query() -> None:
    uri = Uri.parsed("https://host/logs/train%20a.log?token=1/2#top")
    assert uri.on_the_web
    assert uri.name == "train a.log"
