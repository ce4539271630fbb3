import math

import pytest
import torch
import torch.nn.functional as F

from forensics.record import data
from forensics.record.models import Lstm, Mlp, ResidualCnn, TinyGpt


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_shapes():
    assert Mlp(5, 3, depth=0)(torch.ones(2, 5)).shape == (2, 3)
    assert TinyGpt(vocabulary=11, context=7)(torch.zeros(2, 6, dtype=torch.long)).shape == (
        2,
        6,
        11,
    )
    assert ResidualCnn(classes=4)(torch.ones(2, 1, 8, 8)).shape == (2, 4)
    assert Lstm()(torch.ones(2, 9, 1)).shape == (2, 9, 1)


def test_the_gpt_sees_no_future():
    model = TinyGpt().eval()
    tokens = torch.randint(0, 32, (1, 10))
    changed = tokens.clone()
    changed[0, 6] = (changed[0, 6] + 1) % 32
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :6], after[:, :6])
    assert not torch.allclose(before[:, 6], after[:, 6])


def test_the_gpts_head_is_its_embedding():
    model = TinyGpt()
    assert model.head.weight is model.token_embedding.weight
    assert "head.weight" not in dict(model.named_parameters())


def test_an_untrained_gpt_knows_nothing_yet():
    inputs, targets = data.tokens(0, 0, samples=64)
    loss = F.cross_entropy(TinyGpt().eval()(inputs).flatten(0, 1), targets.flatten())
    assert math.log(32) - 0.3 < loss < math.log(32) + 1.2


def test_the_gain_scales_hidden_weights_only():
    torch.manual_seed(1)
    plain = Mlp(4, 2, depth=2)
    torch.manual_seed(1)
    narrow = Mlp(4, 2, depth=2, gain=0.5)
    torch.testing.assert_close(narrow.layers[1].weight, 0.5 * plain.layers[1].weight)
    torch.testing.assert_close(narrow.head.weight, plain.head.weight)


MAKERS = (data.clusters, data.linear_targets, data.tokens, data.images, data.waves)


@pytest.mark.parametrize("make", MAKERS)
def test_data_are_a_function_of_seed_step_and_micro_batch(make):
    state = torch.get_rng_state()
    x, y = make(3, 5, 1)
    again = make(3, 5, 1)
    assert torch.equal(state, torch.get_rng_state()), "the global generator was used"
    assert torch.equal(x, again[0])
    assert torch.equal(y, again[1])
    assert x.dtype in (torch.float32, torch.int64)
    assert len(x) == len(y)
    for other in ((4, 5, 1), (3, 6, 1), (3, 5, 2), (3, 4, 1), (3, 5, 0)):
        assert not torch.equal(x, make(*other)[0])


def test_streams_of_many_seeds_and_steps_never_meet():
    firsts = {
        int(torch.randint(2**62, (1,), generator=data.generator(seed, step, micro)))
        for seed in range(12)
        for step in (None, *range(12))
        for micro in range(4)
    }
    assert len(firsts) == 12 * 13 * 4


def test_tokens_follow_their_few_successors():
    inputs, targets = data.tokens(0, 0, samples=200, successors=3)
    followers: dict[int, set[int]] = {}
    for step in range(4):
        inputs, targets = data.tokens(0, step, samples=200, successors=3)
        for a, b in zip(inputs.flatten().tolist(), targets.flatten().tolist(), strict=True):
            followers.setdefault(a, set()).add(b)
    assert {len(found) for found in followers.values()} == {3}
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
