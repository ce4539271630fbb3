"""Capsules from a stranger: damaged, or made to run something."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch

from forensics.errors import InputError, NotReplayableError
from forensics.replay.capsule import run_capsule


class _Command:
    """Pickles into a call that leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.system, (f"touch {self.trace}",)


@pytest.mark.parametrize("part", ["state.pt", "batch.pt"])
def test_a_pickle_with_code_is_refused(capsule: Path, tmp_path: Path, part: str) -> None:
    trace = tmp_path / "ran"
    for payload in (pickle.dumps(_Command(trace)), None):
        if payload is not None:
            (capsule / part).write_bytes(payload)
        else:
            torch.save({"model": _Command(trace)}, capsule / part)
        with pytest.raises(InputError):
            run_capsule(capsule)
    assert not trace.exists()


@pytest.mark.parametrize("part", ["state.pt", "batch.pt", "capsule.json"])
def test_a_link_out_of_the_capsule_is_refused(capsule: Path, tmp_path: Path, part: str) -> None:
    outside = tmp_path / "secret"
    (capsule / part).rename(outside)
    (capsule / part).symlink_to(outside)
    with pytest.raises(InputError, match="link out of the capsule"):
        run_capsule(capsule)


def _edit(capsule: Path, change) -> None:
    path = capsule / "capsule.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    "name",
    ["os:system", "../evil.py:recipe", "/tmp/evil.py", "evil.py:recipe", "builtins:exec"],
)
def test_a_recipe_that_run_json_names_is_never_imported(
    capsule: Path, tmp_path: Path, name: str
) -> None:
    trace = tmp_path / "ran"
    for place in (capsule / "evil.py", tmp_path / "evil.py"):
        place.write_text(f"import os; os.system('touch {trace}')")

    def change(data):
        data["manifest"]["recipe"] |= {"name": name, "entry_point": name, "file": name}

    _edit(capsule, change)
    with pytest.raises(NotReplayableError):
        run_capsule(capsule)
    assert not trace.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(step=-1),
        lambda data: data.update(step="six"),
        lambda data: data.update(rows=[{"step": "x"}]),
        lambda data: data.update(rows=7),
        lambda data: data.update(manifest={"parameters": 3}),
        lambda data: data.update(expected=[]),
        lambda data: data.update(format_version=99),
        lambda data: data.update(kind="something else"),
    ],
)
def test_damaged_facts_are_an_input_error(capsule: Path, change) -> None:
    _edit(capsule, change)
    with pytest.raises(InputError):
        run_capsule(capsule)


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"', "{}", "[" * 100_000, "\x00" * 20])
def test_facts_that_are_no_json_object(capsule: Path, text: str) -> None:
    (capsule / "capsule.json").write_text(text)
    with pytest.raises(InputError):
        run_capsule(capsule)


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("model"),
        lambda state: state.pop("beyond"),
        lambda state: state["beyond"].update(modes=[True]),
        lambda state: state["beyond"].update(buffers={"nothing": torch.zeros(1)}),
        lambda state: state["beyond"].update(gradients={"nothing": torch.zeros(1)}),
        lambda state: state["beyond"].update(stages=[{"stage": 9, "found_inf": {}}]),
        lambda state: state.update(rng={}),
        lambda state: state.update(format="pickle"),
    ],
)
def test_a_state_of_something_else_is_an_input_error(capsule: Path, damage) -> None:
    state = torch.load(capsule / "state.pt", weights_only=True)
    damage(state)
    torch.save(state, capsule / "state.pt")
    with pytest.raises(InputError):
        run_capsule(capsule)


def test_a_recipe_cannot_be_redirected_by_the_state(capsule: Path) -> None:
    """Values that a recipe keeps on itself never replace what it does."""
    state = torch.load(capsule / "state.pt", weights_only=True)
    state["beyond"]["recipe"] = {"build": "x", "batch": 3, "step": 4, "select": None, "config": 5}
    torch.save(state, capsule / "state.pt")
    assert run_capsule(capsule).confirmed


def test_a_fault_that_is_gone_is_not_confirmed(capsule: Path) -> None:
    batch = torch.load(capsule / "batch.pt", weights_only=True)
    torch.save([(inputs + 1.0, labels) for inputs, labels in batch], capsule / "batch.pt")
    verdict = run_capsule(capsule)
    assert not verdict.confirmed
    assert verdict.answer() == "not confirmed: in step 5 it is sound."
    assert any(line.startswith("bad place") for line in verdict.differences)


def test_what_is_no_capsule_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such directory"):
        run_capsule(tmp_path / "nothing")
    with pytest.raises(InputError, match="is missing"):
        run_capsule(tmp_path)


def test_a_batch_that_claims_to_be_huge_is_refused(capsule: Path) -> None:
    batch = torch.load(capsule / "batch.pt", weights_only=True)
    huge = [(inputs.expand(10**12, -1), labels) for inputs, labels in batch]
    torch.save(huge, capsule / "batch.pt")
    with pytest.raises(InputError, match=r"claims 32,000,000,000,008 bytes"):
        run_capsule(capsule)


@pytest.mark.parametrize("part", ["state.pt", "batch.pt"])
def test_a_part_that_is_cut_short_is_an_input_error(capsule: Path, part: str) -> None:
    whole = (capsule / part).read_bytes()
    (capsule / part).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="cannot be read"):
        run_capsule(capsule)


def test_a_batch_that_is_no_list_is_refused(capsule: Path) -> None:
    torch.save({"inputs": torch.zeros(1)}, capsule / "batch.pt")
    with pytest.raises(InputError, match="no list of micro-batches"):
        run_capsule(capsule)
