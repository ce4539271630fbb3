import math
from collections import Counter
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils._python_dispatch import TorchDispatchMode

from forensics.errors import UsageError
from forensics.record.ema import ExponentialMovingAverage
from forensics.record.precision import Precision
from forensics.record.step_log import SkipLog, StepLog
from forensics.record.train_step import AmpTrainState

FP16 = Precision("fp16", "cpu")


def cross_entropy(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def network(*, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 3))


def batch(seed: int, size: int = 16):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(size, 8, generator=generator),
        torch.randint(0, 3, (size,), generator=generator),
    )


def sgd(model: nn.Module, lr: float = 0.1) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD(model.parameters(), lr=lr)]


def weights(model: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


class Events:
    """A recorder that notes in which order it is called."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.calls = model, []

    def observe(self, grads) -> None:
        self.calls.append(("observe", grads.total, weights(self.model)))

    def write(self, log) -> None:
        self.calls.append(("write", log, weights(self.model)))


class TestAgreesWithAPlainLoop:
    def test_in_fp32_to_the_last_bit(self):
        ours, plain = network(), network()
        state = AmpTrainState(ours, sgd(ours), cross_entropy, max_norm=0.2)
        (optimizer,) = sgd(plain)
        for step in range(5):
            log = state.step(*batch(step))
            optimizer.zero_grad()
            loss = cross_entropy(plain, batch(step))
            loss.backward()
            norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.2)
            optimizer.step()
            assert log.loss == loss.item()
            assert log.grad_l2_pre_clip == pytest.approx(norm.item(), rel=1e-6)
        for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)

    def test_in_fp16_scale_by_scale(self):
        ours, plain = network(), network()
        scalers = [GradScaler("cpu", init_scale=2.0**18, growth_interval=3) for _ in range(2)]
        state = AmpTrainState(
            ours, sgd(ours), cross_entropy, precision=FP16, scaler=scalers[0], max_norm=1.0
        )
        (optimizer,) = sgd(plain)
        skips = 0
        for step in range(25):
            scale = scalers[1].get_scale()
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = cross_entropy(plain, batch(step))
            scalers[1].scale(loss).backward()
            scalers[1].unscale_(optimizer)
            nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            scalers[1].step(optimizer)
            scalers[1].update()
            log = state.step(*batch(step))
            assert log.scaler_scale == scale
            assert log.skipped == (scalers[1].get_scale() < scale)
            skips += log.skipped
        assert 0 < skips < 20  # it calibrates, then trains
        assert scalers[0].state_dict() == scalers[1].state_dict()
        for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


class TestStep:
    def test_logs_what_happened(self):
        model = network()
        state = AmpTrainState(model, sgd(model, 0.25), cross_entropy, max_norm=0.1)
        first, second = state.step(*batch(0)), state.step(*batch(1))
        assert isinstance(first, StepLog)
        assert (first.step, second.step) == (0, 1)
        assert first.lrs == (0.25,)
        assert first.grad_l2_pre_clip > 0.1
        assert first.grad_l2_post_clip == pytest.approx(0.1, rel=1e-4)
        assert not first.skipped
        assert not first.bad
        assert first.scaler_scale == 1.0

    def test_norms_are_equal_below_the_threshold_and_absent_without_one(self):
        model = network()
        log = AmpTrainState(model, sgd(model), cross_entropy, max_norm=1e3).step(*batch(0))
        assert log.grad_l2_post_clip == log.grad_l2_pre_clip
        log = AmpTrainState(model, sgd(model), cross_entropy).step(*batch(0))
        assert log.grad_l2_pre_clip > 0
        assert log.grad_l2_post_clip is None

    def test_gradients_are_observed_before_the_update_and_the_row_comes_last(self):
        model = network()
        events = Events(model)
        before = weights(model)
        AmpTrainState(model, sgd(model), cross_entropy, recorder=events).step(*batch(0))
        (observe, _, seen), (write, log, after) = events.calls
        assert (observe, write) == ("observe", "write")
        assert same(seen, before)
        assert not same(after, before)
        assert isinstance(log, StepLog)

    def test_autocast_is_on_the_optimizers_device(self):
        model = nn.Linear(2, 2, device="meta")
        state = AmpTrainState(model, sgd(model), cross_entropy, precision=Precision("bf16", "cuda"))
        assert state.precision == Precision("bf16", "meta")

    def test_no_micro_batch_is_no_step(self):
        model = network()
        with pytest.raises(ValueError, match="at least one micro-batch"):
            AmpTrainState(model, sgd(model), cross_entropy).step_on([])

    def test_a_mismatch_of_scaler_and_precision_is_refused(self):
        model = network()
        with pytest.raises(UsageError, match="without a GradScaler"):
            AmpTrainState(model, sgd(model), cross_entropy, precision=FP16)
        with pytest.raises(UsageError, match="GradScaler with fp32"):
            AmpTrainState(model, sgd(model), cross_entropy, scaler=GradScaler("cpu"))


class TestNonFiniteLoss:
    def stalled(self, **kwargs):
        model = network()
        scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        poison = {"on": False}

        def loss(model, batch):
            return cross_entropy(model, batch) * (math.nan if poison["on"] else 1.0)

        state = AmpTrainState(
            model, sgd(model), loss, precision=FP16, scaler=scaler, max_norm=1.0, **kwargs
        )
        return model, scaler, state, poison

    def test_skips_before_backward_and_backs_off(self):
        model, scaler, state, poison = self.stalled()
        state.step(*batch(0))
        state.step(*batch(1))
        poison["on"] = True
        before = weights(model)
        log = state.step(*batch(2))
        assert isinstance(log, SkipLog)
        assert log.skip_reason == "nonfinite_loss"
        assert math.isnan(log.loss)
        assert log.grad_l2_pre_clip is None
        assert log.scaler_scale == 1024.0
        assert all(p.grad is None for p in model.parameters())
        assert same(weights(model), before)
        assert scaler.get_scale() == 512.0
        assert scaler.state_dict()["_growth_tracker"] == 0

    def test_in_the_very_first_step_works(self):
        _, scaler, state, poison = self.stalled()
        poison["on"] = True
        assert state.step(*batch(0)).scaler_scale == 1024.0
        poison["on"] = False
        assert not state.step(*batch(1)).skipped
        assert scaler.get_scale() == 512.0

    def test_stops_at_the_floor_and_warns_once(self):
        said: list[str] = []
        _, scaler, state, poison = self.stalled(scale_floor=256.0, say=said.append)
        poison["on"] = True
        scales = [state.step(*batch(step)).scaler_scale for step in range(5)]
        assert scales == [1024.0, 512.0, 256.0, 256.0, 256.0]
        assert scaler.get_scale() == 256.0
        assert len(said) == 1
        assert said[0].startswith("step 2:")
        assert "floor of 256" in said[0]

    def test_warns_as_a_python_warning_by_default(self):
        _, _, state, poison = self.stalled(scale_floor=1024.0)
        poison["on"] = True
        with pytest.warns(UserWarning, match="floor"):
            state.step(*batch(0))

    def test_without_a_scaler_skips_alike(self):
        model = network()
        state = AmpTrainState(model, sgd(model), lambda m, b: m(b[0]).sum() * math.inf)
        log = state.step(*batch(0))
        assert (log.skip_reason, log.scaler_scale) == ("nonfinite_loss", 1.0)


class TestNonFiniteGradient:
    def poisoned(self, name: str, value: float = math.inf, **kwargs):
        model = network()
        hook = dict(model.named_parameters())[name].register_hook(lambda g: g * value)
        return model, hook, AmpTrainState(model, sgd(model), cross_entropy, max_norm=1.0, **kwargs)

    def test_skips_after_unscale_and_names_the_parameter(self):
        model, _, state = self.poisoned("0.weight")
        before = weights(model)
        log = state.step(*batch(0))
        assert isinstance(log, SkipLog)
        assert log.skip_reason == "nonfinite_grad:0.weight"
        assert math.isfinite(log.loss)
        assert not math.isfinite(log.grad_l2_pre_clip)
        assert same(weights(model), before)

    def test_names_the_one_nearest_the_loss(self):
        model, _, state = self.poisoned("0.weight", math.nan)
        model[3].bias.register_hook(lambda g: g * math.nan)
        assert state.step(*batch(0)).skip_reason == "nonfinite_grad:3.bias"

    def test_arrival_order_is_learnt_in_the_first_backward(self):
        model = network()
        state = AmpTrainState(model, sgd(model), cross_entropy)
        assert not state.arrival.settled
        state.step(*batch(0))
        assert state.arrival.settled
        assert set(state.arrival.names[:2]) == {"3.weight", "3.bias"}
        assert set(state.arrival.names[2:]) == {"0.weight", "0.bias"}
        assert not any(p._post_accumulate_grad_hooks for p in model.parameters())

    def test_the_scale_halves_and_stops_at_the_floor(self):
        said: list[str] = []
        scaler = GradScaler("cpu", init_scale=4.0)
        _, _, state = self.poisoned(
            "3.bias", precision=FP16, scaler=scaler, scale_floor=2.0, say=said.append
        )
        assert [state.step(*batch(i)).scaler_scale for i in range(4)] == [4.0, 2.0, 2.0, 2.0]
        assert len(said) == 1

    def test_training_goes_on_when_the_cause_is_gone(self):
        model, hook, state = self.poisoned("0.weight")
        state.step(*batch(0))
        hook.remove()
        before = weights(model)
        assert not state.step(*batch(1)).skipped
        assert not same(weights(model), before)


class TestNormOverflow:
    def test_is_clipped_by_the_true_norm_taken_and_marked(self):
        model = network()
        before = weights(model)
        state = AmpTrainState(
            model, sgd(model), lambda m, b: cross_entropy(m, b) * 1e21, max_norm=1.0
        )
        log = state.step(*batch(0))
        assert isinstance(log, StepLog)
        assert log.norm_overflow
        assert 1e19 < log.grad_l2_pre_clip < 1e22
        assert log.grad_l2_post_clip == pytest.approx(1.0)
        moved = math.sqrt(
            sum(float((a - b).norm()) ** 2 for a, b in zip(weights(model), before, strict=True))
        )
        assert moved == pytest.approx(0.1, rel=1e-3)  # lr times a gradient of norm 1


class TestAccumulation:
    def test_equals_one_large_batch(self):
        whole, parts = network(), network()
        inputs, targets = batch(0, 24)
        one = AmpTrainState(whole, sgd(whole), cross_entropy)
        log = one.step(inputs, targets)
        many = AmpTrainState(parts, sgd(parts), cross_entropy)
        split = list(zip(inputs.split(8), targets.split(8), strict=True))
        accumulated = many.step_on(split)
        assert accumulated.loss == pytest.approx(log.loss, rel=1e-6)
        assert accumulated.grad_l2_pre_clip == pytest.approx(log.grad_l2_pre_clip, rel=1e-5)
        for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
            torch.testing.assert_close(a, b)

    def test_an_incomplete_group_is_divided_by_its_own_size(self):
        model = network()
        state = AmpTrainState(model, sgd(model, 0.0), cross_entropy)
        pair = state.step_on([batch(1), batch(1)])
        lone = state.step_on([batch(1)])
        assert lone.grad_l2_pre_clip == pytest.approx(pair.grad_l2_pre_clip, rel=1e-5)
        assert lone.loss == pair.loss

    @pytest.mark.parametrize("bad", [0, 1, 2])
    def test_one_bad_micro_batch_skips_the_step(self, bad):
        model = network()
        group = [batch(i) for i in range(3)]
        group[bad] = (group[bad][0] * math.nan, group[bad][1])
        before = weights(model)
        log = AmpTrainState(model, sgd(model), cross_entropy).step_on(group)
        assert log.skip_reason == "nonfinite_loss"
        assert math.isnan(log.loss)
        assert same(weights(model), before)


class TestSchedulersAndEma:
    def test_move_only_when_the_optimizer_stepped(self):
        model = network()
        optimizers = sgd(model, 1.0)
        ema = ExponentialMovingAverage(model, 0.5)
        state = AmpTrainState(
            model,
            optimizers,
            cross_entropy,
            schedulers=[StepLR(optimizers[0], 1, gamma=0.5)],
            ema=ema,
        )
        inputs, targets = batch(0)
        assert state.step(inputs * math.nan, targets).skipped
        assert optimizers[0].param_groups[0]["lr"] == 1.0
        assert torch.equal(ema.shadow["0.weight"], model[0].weight)
        log = state.step(inputs, targets)
        assert log.lrs == (1.0,)
        assert optimizers[0].param_groups[0]["lr"] == 0.5
        assert not torch.equal(ema.shadow["0.weight"], model[0].weight)

    def test_a_plateau_scheduler_gets_the_loss(self):
        model = network()
        optimizers = sgd(model)
        scheduler = ReduceLROnPlateau(optimizers[0])
        log = AmpTrainState(model, optimizers, cross_entropy, schedulers=[scheduler]).step(
            *batch(0)
        )
        assert scheduler.best == log.loss


class TestOddTrainings:
    def test_several_optimizers_step_together_or_not_at_all(self):
        model = network()
        optimizers = [
            torch.optim.SGD(model[0].parameters(), lr=0.1),
            torch.optim.AdamW(model[3].parameters(), lr=0.2),
        ]
        scaler = GradScaler("cpu", init_scale=8.0)
        state = AmpTrainState(model, optimizers, cross_entropy, precision=FP16, scaler=scaler)
        log = state.step(*batch(0))
        assert log.lrs == (0.1, 0.2)
        assert log.row()["lr_1"] == 0.2
        hook = model[0].weight.register_hook(lambda g: g * math.inf)
        before = weights(model)
        assert state.step(*batch(1)).skip_reason == "nonfinite_grad:0.weight"
        assert same(weights(model), before)
        assert scaler.get_scale() == 4.0
        hook.remove()
        assert not state.step(*batch(2)).skipped

    def test_an_optimizer_without_gradients_rests(self):
        model = network()
        other = nn.Linear(2, 2)
        both = nn.ModuleDict({"used": model, "unused": other})
        optimizers = [*sgd(model), *sgd(other)]
        state = AmpTrainState(
            both,
            optimizers,
            lambda m, b: cross_entropy(m["used"], b),
            precision=FP16,
            scaler=GradScaler("cpu", init_scale=8.0),
        )
        assert not state.step(*batch(0)).skipped
        assert not state.step(*batch(1)).skipped

    def test_tied_frozen_and_sparse_parameters(self):
        torch.manual_seed(0)
        table = nn.Embedding(10, 4, sparse=True)
        first, second, head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        second.weight = first.weight
        first.bias.requires_grad_(False)
        model = nn.ModuleList([table, first, second, head])
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1)]

        def loss(model, batch):
            hidden = second(first(table(batch[0])))
            return nn.functional.cross_entropy(head(hidden), batch[1])

        state = AmpTrainState(model, optimizers, loss, max_norm=1e-3)
        ids, targets = torch.tensor([1, 1, 3]), torch.tensor([0, 1, 2])
        log = state.step(ids, targets)
        assert log.grad_l2_post_clip == pytest.approx(1e-3, rel=1e-2)
        assert "1.weight" in state.arrival.names
        assert "2.weight" not in state.arrival.names
        assert "1.bias" not in state.arrival.names
        first.weight.register_hook(lambda g: g * math.nan)
        assert state.step(ids, targets).skip_reason == "nonfinite_grad:1.weight"


class Reads(TorchDispatchMode):
    """Counts what makes the host wait for the device, by the operator that does it."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            self.count[str(func)] += 1
        return func(*args, **(kwargs or {}))


class TestNoGradientAtAll:
    @pytest.mark.parametrize("precision", ["fp32", "fp16"])
    def test_is_a_step_that_changes_nothing(self, precision):
        model, elsewhere = network(), torch.ones((), requires_grad=True)
        scaler = GradScaler("cpu", init_scale=8.0, enabled=precision == "fp16")
        state = AmpTrainState(
            model,
            sgd(model),
            lambda model, batch: elsewhere * 2,
            precision=Precision(precision, "cpu"),
            scaler=scaler,
        )
        before = weights(model)
        log = state.step(*batch(0))
        assert (log.loss, log.skipped, log.grad_l2_pre_clip) == (2.0, False, 0.0)
        assert same(before, weights(model))
        assert scaler.get_scale() == (8.0 if precision == "fp16" else 1.0)


@contextmanager
def counted_reads(monkeypatch):
    """Counts every way of reading a tensor: ``tolist`` on a CPU tensor dispatches no operator."""
    with monkeypatch.context() as patch, Reads() as mode:
        for name in ("tolist", "numpy", "cpu"):
            original = getattr(torch.Tensor, name)

            def counting(self, *args, _name=name, _original=original, **kwargs):
                mode.count[_name] += 1
                return _original(self, *args, **kwargs)

            patch.setattr(torch.Tensor, name, counting)
        yield mode.count


class TestBlockingReads:
    @pytest.mark.parametrize("micro_batches", [1, 4])
    @pytest.mark.parametrize("fp16", [True, False])
    def test_are_two_a_step(self, monkeypatch, micro_batches, fp16):
        model = network()
        scaler = GradScaler("cpu", init_scale=8.0, enabled=fp16)
        state = AmpTrainState(
            model,
            [torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)],
            cross_entropy,
            precision=FP16 if fp16 else None,
            scaler=scaler,
            max_norm=0.1,
            ema=ExponentialMovingAverage(model, 0.9),
        )
        group = [batch(i) for i in range(micro_batches)]
        state.step_on(group)
        with counted_reads(monkeypatch) as reads:
            state.step_on(group)
        assert reads.pop("tolist") == 2
        # What is left is GradScaler's own look at found_inf, on its way to optimizer.step.
        assert sum(reads.values()) == (1 if fp16 else 0)

    def test_a_skip_before_backward_needs_one(self, monkeypatch):
        model = network()
        state = AmpTrainState(
            model,
            sgd(model),
            cross_entropy,
            precision=FP16,
            scaler=GradScaler("cpu", init_scale=8.0),
        )
        inputs, targets = batch(0)
        with counted_reads(monkeypatch) as reads:
            state.step(inputs * math.nan, targets)
        assert reads == {"tolist": 1}
