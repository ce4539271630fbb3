"""A flipped bit is found from the digest or the next saved state, and proven by flipping it."""

import math
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from forensics.diagnose.bisection_result import Departure, FaultKind
from forensics.record.extra_columns import digest_of_sums, param_digest, param_sums
from forensics.record.recipe_lookup import find_recipe, split_reference
from forensics.record.reference_loop import RecordOptions, record_run
from forensics.replay.bisection_answer import outside_origin
from forensics.replay.proof.flip import Hit, find_hit
from forensics.replay.proof.flip_proof import Flip, flips_to, prove_flip
from forensics.replay.session import open_session
from forensics.runlog.run import load_run
from tests.faults_unseen.answers import UNSEEN


@pytest.fixture(scope="module")
def parameters():
    torch.manual_seed(0)
    return [
        ("a", torch.randn(3, 4)),
        ("b", torch.randn(5).bfloat16()),
        ("c", torch.randn(2, 2).double()),
    ]


@contextmanager
def recorded(reference, out, *, digest=True):
    recipe = find_recipe(reference)
    config = replace(recipe.defaults, device="cpu", steps=min(recipe.defaults.steps, 20))
    file = split_reference(reference)[0]
    options = RecordOptions(
        out,
        checkpoint_every=2,
        keep="last:99",
        snapshot_every=0,
        extras=("param_digest",) if digest else (),
        recipe_file=file,
    )
    record_run(recipe(config), config, options, say=lambda _: None)
    with open_session(load_run(out), recipe=reference if file else None) as session:
        yield session


def test_the_digest_is_made_of_the_sums(parameters):
    sums = param_sums(parameters)
    assert digest_of_sums(sums) == param_digest(parameters)
    assert digest_of_sums([sums[0] + 2**64, *sums[1:]]) == param_digest(parameters)
    assert digest_of_sums([sums[0] + 1, *sums[1:]]) != param_digest(parameters)


@pytest.mark.parametrize(
    ("which", "kind", "index", "bit"),
    [
        (0, torch.int32, 7, 30),
        (0, torch.int32, 0, 31),
        (0, torch.int32, 11, 0),
        (1, torch.int16, 4, 14),
        (1, torch.int16, 2, 15),
        (2, torch.int64, 3, 62),
    ],
)
def test_the_digest_tells_the_bit(parameters, which, kind, index, bit):
    hit = [(name, tensor.clone()) for name, tensor in parameters]
    flat = hit[which][1].view(kind).view(-1)
    width = 8 * flat.element_size()
    flat[index] ^= -(1 << bit) if bit == width - 1 else 1 << bit
    found = list(flips_to(parameters, param_digest(hit)))
    assert Flip(parameter=hit[which][0], key="", index=index, bit=bit) in found
    # The sum is kept modulo 2^64, so high bits of float64 collide: the replay tells them apart.
    assert len(found) == 1 or kind == torch.int64


def test_no_bit_explains_two_changes(parameters):
    hit = [(name, tensor.clone()) for name, tensor in parameters]
    hit[0][1][0, 0] += 0.1
    hit[1][1][1] += 0.1
    assert list(flips_to(parameters, param_digest(hit))) == []


@pytest.mark.parametrize("digest", [True, False])
def test_a_flipped_weight(tmp_path, digest):
    with recorded("bit-flip", tmp_path / "run", digest=digest) as session:
        hit = find_hit(session, 5)
    assert (hit.name, hit.index, hit.bit, hit.state) == ("layers.0.weight", (3, 1), 30, 5)
    assert hit.owner == ""
    assert 0.2 < hit.replayed < 0.4
    assert hit.recorded > 1e37


def test_a_flipped_moment_is_dated_before_the_row_that_departs(tmp_path):
    reference = next(a.recipe for a in UNSEEN if "moment-bit-flip" in a.recipe)
    with recorded(reference, tmp_path / "run") as session:
        session.go_to(12)
        departed = [session.departure(session.run_step()) for _ in (12, 13, 14)]
        assert [gone is None for gone in departed] == [True, True, False]
        hit = find_hit(session, 14)
    assert hit.name == "layers.1.weight.exp_avg_sq"
    assert (hit.owner, hit.index, hit.bit, hit.state) == ("layers.1.weight", (2, 5), 30, 13)


def test_a_sound_row_is_explained_by_no_bit(tmp_path):
    with recorded("control-loss-spike", tmp_path / "run") as session:
        assert prove_flip(session, 5) is None


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"loss": math.nan, "norm_overflow": False}, FaultKind.NAN),
        ({"loss": math.inf}, FaultKind.INF),
        ({"loss": 1.0, "grad_l2_pre_clip": 1e20, "norm_overflow": True}, FaultKind.NORM_OVERFLOW),
        ({"loss": 1.0, "grad_l2_pre_clip": 2.0}, FaultKind.APPLIED),
    ],
)
def test_what_is_told_of_a_changed_value(row, kind):
    gone = Departure(step=14, column="param_digest", recorded="a", replayed="b")
    hit = Hit(
        name="body.weight.exp_avg_sq",
        index=(2, 5),
        recorded=2e33,
        replayed=6e-6,
        state=13,
        one_bit=True,
        owner="body.weight",
        bit=30,
    )
    origin = outside_origin(hit, gone, 14, row)
    assert (origin.kind, origin.module, origin.parameters) == (kind, "body", ("body.weight",))
    assert origin.parameter + origin.element == "body.weight.exp_avg_sq[2, 5]"
    assert "before step 13" in origin.summary
    assert ("where the record is not" in origin.summary) is (kind is not FaultKind.APPLIED)
