"""run.json: written whole, read with care."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.errors import InputError
from forensics.runlog.manifest import (
    Ended,
    Manifest,
    NewerSchemaError,
    ParameterInfo,
    ScalerPolicy,
    Segment,
    read_manifest,
    write_manifest,
)
from forensics.runlog.schema import SCHEMA_VERSION

FULL = Manifest(
    tool_version="0.1.0",
    recipe={"name": "mlp", "config": {"lr": 0.1, "steps": 20}},
    seeds={"torch": 1, "data": 2},
    device="cpu",
    precision="fp16",
    max_norm=1.0,
    scaler=ScalerPolicy(enabled=True, init_scale=2.0**16),
    columns=("step", "loss"),
    parameters=(
        ParameterInfo("a.weight", (3, 4), "float32", 0, ("b.weight",)),
        ParameterInfo("c", requires_grad=False),
    ),
    arrival_order=("c", "a.weight"),
    segments=(Segment(0, "2026-01-01T00:00:00+00:00"), Segment(10, reason="resume")),
    ended=Ended("exception", 12, "KeyError: 'x'"),
    checkpoints={"best": 10, "last_healthy": None},
    missing=("step 3: No space left on device",),
)


def test_what_was_written_comes_back(tmp_path: Path) -> None:
    write_manifest(tmp_path, FULL)
    assert read_manifest(tmp_path) == FULL
    assert read_manifest(tmp_path / "run.json") == FULL
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert FULL.parameters[0].numel == 12
    assert not FULL.running


def test_nonfinite_settings_are_strings_in_the_file_and_floats_again(tmp_path: Path) -> None:
    config = {"lr": math.nan, "path": Path("data"), "betas": (0.9, -math.inf)}
    write_manifest(tmp_path, Manifest(max_norm=math.inf, recipe={"config": config}))
    text = (tmp_path / "run.json").read_text()
    parsed = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert parsed["recipe"]["config"] == {"lr": "nan", "path": "data", "betas": [0.9, "-inf"]}
    assert read_manifest(tmp_path).max_norm == math.inf


def test_keys_of_others_are_kept(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(
        '{"schema_version": 1, "cluster": {"node": 7}, "device": null}'
    )
    manifest = read_manifest(tmp_path)
    assert manifest.unknown == {"cluster": {"node": 7}}
    assert manifest.device == ""
    assert manifest.running
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest


def test_a_newer_format_says_to_upgrade(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"schema_version": SCHEMA_VERSION + 1}))
    with pytest.raises(NewerSchemaError, match="upgrade"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "JSON"),
        ("{", "JSON"),
        ("\0" * 100, "JSON"),
        ("[1]", "JSON object"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 200_000, "nested too deeply"),
        ('{"max_norm": "x"}', "max_norm should be a number"),
        ('{"max_norm": true}', "max_norm should be a number"),
        ('{"world_size": 1.5}', "world_size should be a number"),
        ('{"segments": 3}', "segments should be a list"),
        ('{"parameters": [{"name": "a", "shape": ["x"]}]}', r"parameters\[0\].shape\[0\]"),
        ('{"parameters": [{"shape": [1]}]}', r"parameters\[0\] lacks a field"),
        ('{"seeds": {"torch": "one"}}', "seeds.torch should be a number"),
        ('{"ended": "finished"}', "ended should be an object"),
        ('{"ended": {"how": 1e400}}', "ended.how should be text"),
        ('{"schema_version": "2"}', "schema_version should be a number"),
        ("9" * 10_000, "JSON"),
    ],
)
def test_damage_is_one_clear_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError, match=said) as caught:
        read_manifest(tmp_path)
    assert len(caught.value.line()) < 400 + len(str(tmp_path))


def test_a_file_too_large_to_be_one_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forensics.runlog.manifest._LARGEST", 1000)
    (tmp_path / "run.json").write_text("{" + " " * 1000 + "}")
    with pytest.raises(InputError, match="larger"):
        read_manifest(tmp_path)


def test_a_missing_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_manifest(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = st.sampled_from([*FULL.to_json(), "else"])


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(FIELDS, JSON, max_size=4))
def test_any_json_is_a_manifest_or_an_input_error(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, object]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(data))
    try:
        manifest = read_manifest(path)
    except InputError:
        return
    json.dumps(manifest.to_json(), allow_nan=False)
