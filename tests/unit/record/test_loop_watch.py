import math

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from forensics.record.loop_watch import LoopWatch
from forensics.record.parameters import tracked_parameters
from forensics.record.step_log import SkipLog, StepLog

FUSED = pytest.mark.parametrize("fused", [False, True])


class Loop:
    """Somebody's loop over a linear layer, with the choices that loops differ in."""

    def __init__(self, *, fused: bool = False, scale: float | None = None, clip: float = 0.5):
        torch.manual_seed(0)
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, fused=fused)
        self.scaler = GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        self.clip = clip
        self.watch = LoopWatch(
            tracked_parameters(self.model, [self.optimizer]), [self.optimizer], self.scaler
        )

    def backward(self, poison: float = 1.0) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(torch.ones(3, 4)).square().mean()
        self.scaler.scale(loss * 1.0).backward()
        self.model.weight.grad.mul_(poison)
        return loss.detach()

    def step(self, poison: float = 1.0, *, unscale: bool = True, measure: bool = True):
        loss = self.backward(poison)
        if unscale:
            self.scaler.unscale_(self.optimizer)
        if measure:
            self.watch.gradients()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.watch.end_step(loss)


@FUSED
def test_a_step_taken_is_told_with_its_measured_norms(fused):
    loop = Loop(fused=fused, clip=0.1)
    log = loop.step()
    assert isinstance(log, StepLog)
    assert log.step == 0
    assert log.lrs == (0.1,)
    assert log.grad_l2_pre_clip > 0.1
    assert log.grad_l2_post_clip == pytest.approx(0.1, rel=1e-4)
    assert loop.step().step == 1


def test_the_norms_are_equal_where_the_loop_did_not_clip():
    log = Loop(clip=1e6).step()
    assert log.grad_l2_post_clip == pytest.approx(log.grad_l2_pre_clip, rel=2e-6)


@FUSED
@pytest.mark.parametrize("unscale", [True, False])
@pytest.mark.parametrize("measure", [True, False])
def test_a_scaler_that_skips_is_seen_whatever_the_loop_looks_like(fused, unscale, measure):
    loop = Loop(fused=fused, scale=64.0)
    assert isinstance(loop.step(unscale=unscale, measure=measure), StepLog)
    log = loop.step(math.inf, unscale=unscale, measure=measure)
    assert isinstance(log, SkipLog)
    assert log.scaler_scale == 64.0
    assert log.skip_reason == ("nonfinite_grad:weight" if measure else "nonfinite_grad")
    assert loop.scaler.get_scale() == 32.0
    after = loop.step(unscale=unscale, measure=measure)
    assert isinstance(after, StepLog)
    assert after.scaler_scale == 32.0


def test_a_fused_optimizer_is_called_even_where_it_skips():
    # Why "was step called" is no evidence.
    loop = Loop(fused=True, scale=64.0)
    calls = []
    loop.optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    before = loop.model.weight.detach().clone()
    assert loop.step(math.nan).skipped
    assert calls == [1]
    assert torch.equal(loop.model.weight, before)


def test_non_finite_gradients_that_were_applied_are_no_skip():
    loop = Loop()
    log = loop.step(math.nan)
    assert isinstance(log, StepLog)
    assert log.bad
    assert math.isnan(log.grad_l2_pre_clip)
    assert math.isnan(log.grad_l2_post_clip)


def test_a_loop_that_ignores_its_scaler_did_step():
    loop = Loop(scale=64.0)
    loss = loop.backward(math.inf)
    loop.scaler.unscale_(loop.optimizer)
    loop.watch.gradients()
    loop.optimizer.step()
    loop.scaler.update()
    assert isinstance(loop.watch.end_step(loss), StepLog)


class TestWithoutAStep:
    def test_a_non_finite_loss(self):
        log = Loop().watch.end_step(torch.tensor(math.nan))
        assert isinstance(log, SkipLog)
        assert log.skip_reason == "nonfinite_loss"
        assert log.grad_l2_pre_clip is None

    def test_a_finite_one_is_skipped_for_a_reason_of_the_loops_own(self):
        assert Loop().watch.end_step(1.5).skip_reason == "other"

    def test_a_guard_that_leaves_out_a_bad_gradient(self):
        loop = Loop()
        loss = loop.backward(math.inf)
        loop.watch.gradients()
        assert loop.watch.end_step(loss).skip_reason == "nonfinite_grad:weight"


class TestScaledGradients:
    def test_are_marked_and_their_norm_is_what_the_clip_saw(self):
        loop = Loop(scale=1024.0, clip=1e9)
        right = loop.step()
        wrong = loop.step(unscale=False)
        assert not right.grads_scaled
        assert wrong.grads_scaled
        assert wrong.grad_l2_pre_clip > 500 * right.grad_l2_pre_clip

    @FUSED
    def test_the_norm_after_is_the_one_that_reaches_the_weights(self, fused):
        log = Loop(scale=1024.0, clip=1.0, fused=fused).step(unscale=False)
        assert log.grad_l2_post_clip == pytest.approx(1.0 / 1024.0, rel=1e-4)

    def test_are_not_marked_where_there_is_no_scaler(self):
        assert not Loop().step().grads_scaled


def test_a_norm_overflow_is_marked_with_the_true_norm():
    log = Loop().step(1e25)
    assert log.norm_overflow
    assert 1e19 < log.grad_l2_pre_clip < math.inf


class TestLearningRate:
    def test_is_the_one_in_force_though_the_scheduler_moves_before_the_row(self):
        loop = Loop()
        scheduler = torch.optim.lr_scheduler.StepLR(loop.optimizer, 1, gamma=0.5)
        loss = loop.backward()
        loop.optimizer.step()
        scheduler.step()
        assert loop.watch.end_step(loss).lrs == (0.1,)
        assert loop.watch.end_step(0.0).lrs == (0.05,)

    def test_is_the_one_set_inside_the_step(self):
        loop = Loop()
        loop.optimizer.param_groups[0]["lr"] = 0.7
        assert loop.step().lrs == (0.7,)


class TestSeveralOptimizers:
    def pair(self, scale: float | None):
        torch.manual_seed(0)
        parts = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in parts]
        scaler = GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        watch = LoopWatch(tracked_parameters(parts, optimizers), optimizers, scaler)
        return parts, optimizers, scaler, watch

    def test_one_that_stays_behind_under_a_shared_scaler_makes_a_skip(self):
        parts, optimizers, scaler, watch = self.pair(64.0)
        scaler.scale(sum(part(torch.ones(1, 2)).sum() for part in parts)).backward()
        parts[1].weight.grad.fill_(math.inf)
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        watch.gradients()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        log = watch.end_step(1.0)
        assert log.skipped
        assert log.skip_reason == "nonfinite_grad:1.weight"

    def test_taking_turns_is_no_skip(self):
        parts, optimizers, _, watch = self.pair(None)
        for turn in (0, 1, 0):
            parts[turn](torch.ones(1, 2)).sum().backward()
            watch.gradients()
            optimizers[turn].step()
            for optimizer in optimizers:
                optimizer.zero_grad()
            assert not watch.end_step(1.0).skipped


def test_closing_takes_every_hook_away():
    loop = Loop()
    loop.watch.close()
    assert not loop.optimizer._optimizer_step_pre_hooks
    assert not any(p._post_accumulate_grad_hooks for p in loop.model.parameters())


def test_an_optimizer_called_twice_counts_once_and_is_noted():
    loop = Loop(clip=0.1)
    assert loop.step().grad_l2_post_clip == pytest.approx(0.1, rel=1e-4)
    assert loop.watch.repeated == 0
    loss = loop.backward()
    loop.watch.gradients()
    nn.utils.clip_grad_norm_(loop.model.parameters(), 0.1)
    loop.optimizer.step()
    loop.optimizer.step()
    log = loop.watch.end_step(loss)
    assert log.grad_l2_post_clip == pytest.approx(0.1, rel=1e-4)
    assert loop.watch.repeated == 1
    assert (loop.watch.reapplied, loop.watch.first_reapplied) == (1, 1)


def test_gradients_written_or_made_anew_in_between_are_not_the_same_again():
    loop = Loop()
    for between in (lambda: loop.model.weight.grad.mul_(1.0), loop.backward):
        loss = loop.backward()
        loop.optimizer.step()
        between()
        loop.optimizer.step()
        loop.watch.end_step(loss)
    assert (loop.watch.repeated, loop.watch.reapplied) == (2, 0)


def test_an_optimizer_that_skipped_may_be_called_again():
    loop = Loop(fused=True, scale=64.0)
    loss = loop.backward(math.inf)
    loop.scaler.step(loop.optimizer)
    loop.optimizer.found_inf = loop.scaler._per_optimizer_states[id(loop.optimizer)][
        "found_inf_per_device"
    ][torch.device("cpu")]
    loop.optimizer.step()
    loop.watch.end_step(loss)
    assert (loop.watch.repeated, loop.watch.reapplied) == (1, 0)
