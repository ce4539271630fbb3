"""A recipe's batches from a shuffling data loader are those of the script."""

from itertools import chain

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from forensics import batches_of
from forensics.errors import InputError


def make_loader(rows: int = 10):
    data = TensorDataset(torch.arange(rows, dtype=torch.float32))
    order = torch.Generator().manual_seed(1)
    return DataLoader(data, batch_size=4, shuffle=True, generator=order)


def of_the_script(epochs: int) -> list[list[float]]:
    loader = make_loader()
    return [b.tolist() for (b,) in chain.from_iterable(loader for _ in range(epochs))]


def test_any_step_is_the_scripts_over_all_epochs():
    batch, told = batches_of(make_loader), of_the_script(3)
    assert len(told) == 9
    assert told[:3] != told[3:6]
    for step in (0, 1, 2, 3, 8, 8, 4, 5, 0):
        assert batch(step)[0].tolist() == told[step]


def test_a_batch_is_no_list_which_would_be_one_of_micro_batches():
    assert type(next(iter(make_loader()))) is list
    assert type(batches_of(make_loader)(0)) is tuple
    told = of_the_script(2)
    two = batches_of(make_loader, accumulation=2)(1)
    assert [b.tolist() for (b,) in two] == told[2:4]


def test_the_random_state_of_the_training_is_left_alone():
    torch.manual_seed(3)
    batches_of(lambda: DataLoader(TensorDataset(torch.ones(4)), shuffle=True))(2)
    drawn = torch.rand(())
    torch.manual_seed(3)
    assert torch.rand(()) == drawn


def test_what_a_loss_writes_into_a_batch_is_not_there_the_next_time():
    batch, (first, *_) = batches_of(make_loader), of_the_script(1)
    batch(0)[0].zero_()
    assert batch(0)[0].tolist() == first


def test_an_empty_loader_is_refused():
    with pytest.raises(InputError, match="no batch"):
        batches_of(list)(0)
