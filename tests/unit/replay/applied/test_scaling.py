"""What a step applied under a loss scale: each fault is found, and what looks like it is sound."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from forensics.diagnose.bisection_result import FaultKind
from forensics.record.loop_watch import LoopWatch
from forensics.replay.applied.scaling import DIVIDED_AGAIN, UPDATED_TWICE
from forensics.replay.tracing.operator_advice import advice_for
from forensics.replay.tracing.step_facts import Context
from tests.unit.replay.small_loops import ScaledLoop, looked_into, training_of


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_the_textbook_order_is_sound():
    assert ScaledLoop().examine(after=2).origin is None
    assert ScaledLoop(optimizer=torch.optim.AdamW, fused=True).examine(after=1).origin is None


def test_a_clip_before_unscale_is_found_with_its_effective_threshold():
    loop = ScaledLoop(scale=4096.0)
    loop.unscales = False
    origin = loop.examine().origin
    assert (origin.kind, origin.operator, origin.phase) == (FaultKind.APPLIED, "clip", "clip")
    assert "2.44e-05" in origin.summary  # 0.1 / 4096
    assert "clip_grad_norm_" in origin.source_line
    assert set(origin.parameters) == {name for name, _ in loop.model.named_parameters()}


def test_a_threshold_that_is_scaled_on_purpose_is_sound():
    loop = ScaledLoop(scale=4096.0)
    loop.unscales, loop.max_norm = False, 0.1 * 4096
    assert loop.examine(context=Context(threshold=0.1)).origin is None
    assert loop.examine().origin is None


def test_a_step_past_the_scaler_is_found():
    loop = ScaledLoop()
    loop.unscales, loop.through_scaler, loop.max_norm = False, False, 0.0
    origin = loop.examine().origin
    assert (origin.operator, origin.phase) == ("optimizer", "optimizer")
    assert origin.module in ("0", "2")
    assert origin.parameter.startswith(origin.module)
    assert "loss scale of 1,024" in origin.summary


def test_unscaling_by_hand_and_stepping_without_the_scaler_is_sound():
    loop = ScaledLoop()
    loop.unscales, loop.through_scaler, loop.by_hand = False, False, True
    loop.max_norm = 0.0
    assert loop.examine().origin is None


@pytest.mark.parametrize("max_norm", [0.0, 1e-3, 100.0])
def test_gradients_that_are_divided_by_the_scale_twice_are_found(max_norm):
    loop = ScaledLoop(scale=4096.0)
    loop.by_hand, loop.max_norm = True, max_norm
    origin = loop.examine().origin
    assert (origin.kind, origin.phase) == (FaultKind.APPLIED, "unscale")
    assert origin.operator == DIVIDED_AGAIN
    assert "1/4,096, the loss scale, of it; they were scaled once and divided" in origin.summary
    assert "divide by the loss scale once" in advice_for(origin)


def test_gradients_of_a_plain_loss_that_are_unscaled_are_found():
    loop = ScaledLoop()

    def run() -> Tensor:
        loop.optimizer.zero_grad()
        loss = loop.training.loss(loop.model, loop.inputs[0])
        loop.scaler.scale(loss)
        loss.backward()
        loop.scaler.step(loop.optimizer)
        loop.scaler.update()
        return loss

    loop.training.loss = lambda model, inputs: model(inputs).pow(2).mean()
    origin = looked_into(loop.training, run, batches=loop.inputs[:1]).origin
    assert origin.operator == DIVIDED_AGAIN
    assert "never scaled" in origin.summary
    assert advice_for(origin) == "call backward() on scaler.scale(loss)"


def test_small_gradients_that_are_divided_once_are_sound():
    loop = ScaledLoop(scale=4096.0)
    loop.inputs = [inputs * 1e-3 for inputs in loop.inputs]
    assert loop.examine().origin is None


def test_an_overflow_that_the_scaler_absorbs_is_no_fault_and_says_why():
    found = ScaledLoop(scale=2.0**40).examine()
    assert found.trace.damages
    assert found.origin is None
    assert "loss scale of 1.09951e+12" in found.absorbed


def test_an_exception_is_not_blamed_on_an_overflow_that_the_scaler_would_have_absorbed():
    loop = ScaledLoop(scale=2.0**40)

    def run() -> Tensor:
        loop()
        raise OSError("no space left")

    origin = looked_into(loop.training, run).origin
    assert (origin.kind, origin.operator) == (FaultKind.EXCEPTION, "OSError")


def test_a_fused_skip_is_a_fault_only_where_something_counts_it_as_a_step():
    loop = ScaledLoop(scale=2.0**40, optimizer=torch.optim.AdamW, fused=True)
    assert loop.examine().origin is None
    watch = LoopWatch(list(loop.model.named_parameters()), [loop.optimizer], loop.scaler)
    loop.optimizer.register_step_post_hook(watch._left)  # as it does where step has a closure
    assert loop.examine().origin is None
    watch.close()
    loop = ScaledLoop(scale=2.0**40, optimizer=torch.optim.AdamW, fused=True)
    loop.optimizer.register_step_post_hook(lambda *_: None)
    origin = loop.examine().origin
    assert (origin.operator, origin.phase) == ("_fused_adamw_", "optimizer")
    assert "found_inf is 1" in origin.summary


def test_one_scaler_that_lets_only_one_of_two_optimizers_step_is_found():
    model = nn.ModuleDict({"a": nn.Linear(4, 8), "b": nn.Linear(8, 1)})
    optimizers = [torch.optim.SGD(part.parameters(), 1e-3) for part in model.values()]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**11)
    large = torch.full((4, 4), 3e4)

    def run() -> Tensor:
        for optimizer in optimizers:
            optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model["b"](model["a"](large).tanh()).float().mean() * 4
        scaler.scale(loss).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        return loss

    with torch.no_grad():
        model["a"].weight.fill_(1e-6)
    origin = looked_into(training_of(model, optimizers, scaler=scaler), run).origin
    assert (origin.operator, origin.phase) == ("GradScaler.step", "optimizer")
    assert origin.parameter.startswith("a.")


def test_a_scale_that_jumps_back_makes_its_overflow_a_fault():
    loop = ScaledLoop(scale=256.0)
    loop()
    new = torch.amp.GradScaler("cpu", init_scale=2.0**40)

    def resumed() -> Tensor:
        loop.scaler.load_state_dict(new.state_dict())
        return loop()

    found = looked_into(loop.training, resumed, batches=loop.inputs)
    assert found.origin.phase == "backward"
    assert found.origin.chain[0].what == "loss scale"
    assert "the loss scale was reset (256 -> 1.09951e+12)" in found.origin.summary


def test_a_scale_that_jumped_between_two_records_is_found_where_nothing_overflows():
    loop = ScaledLoop(scale=4096.0)
    origin = loop.examine(context=Context(step=5, scale_before=16.0)).origin
    assert (origin.operator, origin.phase) == ("resume", "outside")
    assert ScaledLoop(scale=4096.0).examine(context=Context(scale_before=2048.0)).origin is None


def test_a_clip_that_comes_after_the_step_is_found_and_a_run_without_a_clip_is_sound():
    loop = ScaledLoop()
    loop.clips_before = False
    origin = loop.examine().origin
    assert (origin.operator, origin.phase) == ("clip", "clip")
    assert "came after the step" in origin.summary
    loop = ScaledLoop()
    loop.max_norm = 0.0
    assert loop.examine(context=Context(threshold=0.1)).origin is None
    loop = ScaledLoop()
    loop.clips_before, loop.max_norm = False, 1e6  # does not engage
    assert loop.examine().origin is None


@pytest.mark.parametrize("again", ["count", "set"])
def test_a_scaler_that_is_updated_twice_a_step_is_found(again: str):
    loop = ScaledLoop(scale=256.0)

    def run() -> Tensor:
        loss = loop()
        loop.scaler.update(loop.scaler.get_scale() * 1.5) if again == "set" else _update(loop)
        return loss

    origin = looked_into(loop.training, run, batches=loop.inputs).origin
    assert (origin.operator, origin.phase) == (UPDATED_TWICE, "unscale")
    assert "called 2 times for 1 GradScaler.step()" in origin.summary
    assert "once for each scaler.step()" in advice_for(origin)


def _update(loop: ScaledLoop) -> None:
    """Once more by micro-batch: torch asks for an inf check in between."""
    states = loop.scaler._per_optimizer_states[id(loop.optimizer)]
    states["found_inf_per_device"] = {torch.device("cpu"): torch.zeros(())}
    loop.scaler.update()


def test_one_update_for_each_of_two_steps_is_sound():
    loop = ScaledLoop(scale=256.0)

    def run() -> Tensor:
        loop()
        return loop()

    found = looked_into(loop.training, run, batches=loop.inputs)
    assert found.origin is None or found.origin.operator != UPDATED_TWICE
