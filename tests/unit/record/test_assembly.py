import pytest
import torch
from torch import nn

from forensics.record.assembly import (
    assemble,
    count_tokens,
    describe_recording,
    to_device,
    told,
)
from forensics.record.precision import choose_precision
from forensics.record.recipe_lookup import find_recipe


def test_an_error_is_told_by_the_last_place_outside_torch():
    with pytest.raises(RuntimeError) as caught:
        nn.Linear(2, 2)(torch.ones(1, 3))
    line = told(caught.value)
    assert line.startswith("RuntimeError: mat1 and mat2")
    assert "(test_assembly.py:" in line
    assert "\n" not in line


def test_an_error_without_words_has_its_name():
    with pytest.raises(StopIteration) as caught:
        next(iter([]))
    assert told(caught.value).startswith("StopIteration (test_assembly.py:")


def test_tokens_are_integers_or_else_samples():
    ids, images = torch.zeros(4, 7, dtype=torch.long), torch.zeros(5, 3, 8, 8)
    assert count_tokens((ids, ids)) == 28
    assert count_tokens((images, ids)) == 5
    assert count_tokens({"inputs": ids, "mask": images}) == 28
    assert count_tokens("text") == 0


def test_batches_move_whole():
    batch = {"x": (torch.ones(1), [torch.ones(2)]), "name": "a"}
    moved = to_device(batch, torch.device("meta"))
    assert moved["x"][1][0].device.type == "meta"
    assert isinstance(moved["x"], tuple)
    assert moved["name"] == "a"


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("healthy-mlp", "fp32"),
        ("sqrt-at-zero", "fp32"),  # a loop of its own, without a scaler
        ("norm-eps-fp16", "fp16"),  # a loop of its own that follows the config
        ("step-bypasses-scaler", ""),  # a scaler of its own under fp32: the loop decides
    ],
)
def test_precision_is_told_where_the_config_decides_it(name, precision):
    kind = find_recipe(name)
    recipe = kind(kind.defaults)
    device = torch.device("cpu")
    chosen = choose_precision(recipe.config.precision, device, lambda _: None)
    training = assemble(recipe, recipe.config, chosen, device)
    assert describe_recording(recipe, recipe.config, training, chosen).precision == precision


def test_a_full_stop_does_not_stand_before_the_place():
    with pytest.raises(IndexError) as caught:
        nn.functional.cross_entropy(torch.zeros(1, 3), torch.tensor([5]))
    line = told(caught.value)
    assert line.startswith("IndexError: Target 5 is out of bounds (test_assembly.py:")
