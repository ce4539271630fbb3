import json
from pathlib import Path

import pytest

from forensics.errors import UsageError
from forensics.record.options import KEPT, KeepPolicy, RecordOptions


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("last:3,every:0", KeepPolicy(3, 0)),
        ("last:5", KeepPolicy(5, 0)),
        ("every:1000", KeepPolicy(3, 1000)),
        ("every:10, last:1", KeepPolicy(1, 10)),
    ],
)
def test_a_policy_is_read(text, policy):
    assert KeepPolicy.parse(text) == policy
    assert KeepPolicy.parse(policy) is policy


@pytest.mark.parametrize("text", ["", "last", "last:0", "last:-1", "first:3", "last:3,", "last:x"])
def test_anything_else_is_refused(text):
    with pytest.raises(UsageError, match="--keep"):
        KeepPolicy.parse(text)


def test_options_that_contradict_or_do_not_exist_are_refused():
    out = Path("x")
    with pytest.raises(UsageError, match="exclude each other"):
        RecordOptions(out, resume=True, overwrite=True)
    with pytest.raises(UsageError, match="no extra column is called 'gpu'"):
        RecordOptions(out, extras=("gpu",))
    with pytest.raises(UsageError, match="log_every"):
        RecordOptions(out, log_every=0)
    with pytest.raises(UsageError, match="snapshot_every"):
        RecordOptions(out, snapshot_every=-1)


def test_what_a_resume_goes_on_with_is_plain_and_read_back() -> None:
    options = RecordOptions(
        Path("x"), checkpoint_every=7, keep="every:50,last:2", extras=("update_l2",), log_every=5
    )
    kept = options.to_manifest()
    assert json.loads(json.dumps(kept)) == kept
    assert kept["keep"] == "last:2,every:50"
    assert {name: type(value) for name, value in kept.items()} == KEPT
    again = RecordOptions(Path("x"), **{**kept, "extras": tuple(kept["extras"])})
    assert again.to_manifest() == kept
    assert KeepPolicy.parse(str(KeepPolicy(4))) == KeepPolicy(4)
