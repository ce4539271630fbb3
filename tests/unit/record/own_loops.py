"""Training loops as people write them: sound ones, each of its kind, and ones in a wrong order.

Each takes a function that makes the recorder, and trains a few steps on tiny tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

STEPS = 12
Make = Callable[..., Any]
"""``Recorder`` with its directory filled in."""


def net(out: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, out))


def batch(i: int) -> torch.Tensor:
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(i))


def loss_of(model: nn.Module, i: int) -> torch.Tensor:
    inputs = batch(i)
    return nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.01, **options)


# -- sound ---------------------------------------------------------------------------------


def plain(make: Make) -> None:
    model = net()
    optimizer = sgd(model)
    with make(model, optimizer, max_norm=0.1) as recorder:
        for i in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, i)
            loss.backward()
            recorder.gradients(loss)
            clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            recorder.end_step()


def loss_at_the_end(make: Make) -> None:
    model = net()
    optimizer = sgd(model)
    with make(model, optimizer, max_norm=0.1) as recorder:
        for i in range(STEPS):
            loss = loss_of(model, i)
            loss.backward()
            recorder.gradients()
            clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            recorder.end_step(loss)


def scaled(make: Make, **options: Any) -> None:
    model = net()
    optimizer = sgd(model, **options)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with make(model, optimizer, scaler=scaler, max_norm=0.1) as recorder:
        for i in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, i)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            recorder.gradients(loss)
            clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            recorder.end_step()


def scaled_and_fused(make: Make) -> None:
    scaled(make, fused=True)


def disabled_scaler(make: Make) -> None:
    model = net()
    optimizer = sgd(model)
    scaler = GradScaler("cpu", enabled=False)
    with make(model, optimizer, scaler=scaler, max_norm=0.1) as recorder:
        for i in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(model, i)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            recorder.gradients(loss)
            clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            recorder.end_step()


def accumulation(make: Make) -> None:
    model = net()
    optimizer = sgd(model)
    with make(model, optimizer, max_norm=0.1) as recorder:
        total = torch.zeros(())
        for i in range(3 * STEPS):
            loss = loss_of(model, i) / 3
            loss.backward()
            total = total + loss.detach()
            if (i + 1) % 3 == 0:
                recorder.gradients(total)
                clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
                optimizer.zero_grad()
                recorder.end_step()
                total = torch.zeros(())


def gan(make: Make, *, scalers: int = 1, update_each: bool = False, keep: bool = False) -> None:
    """Discriminator, then generator, whose backward leaves gradients in the discriminator."""
    critic, maker = net(), net(out=4)
    optimizers = [sgd(critic), sgd(maker)]
    given = [GradScaler("cpu", init_scale=256.0) for _ in range(scalers)]
    of = [given[0], given[-1]] if given else [GradScaler("cpu", enabled=False)] * 2
    model = nn.ModuleDict({"critic": critic, "maker": maker})
    with make(model, optimizers, scaler=given or None, max_norm=0.1) as recorder:
        for i in range(STEPS):
            losses = []
            for turn, parts in enumerate((critic, maker)):
                optimizers[turn].zero_grad(set_to_none=not keep)
                fake = maker(batch(i))
                told = critic(fake.detach() if turn == 0 else fake).mean()
                loss = told - critic(batch(i + 99)).mean() if turn == 0 else -told
                of[turn].scale(loss).backward()
                of[turn].unscale_(optimizers[turn])
                recorder.gradients()
                clip_grad_norm_(parts.parameters(), 0.1)
                of[turn].step(optimizers[turn])
                if update_each or scalers > 1:
                    of[turn].update()
                losses.append(loss.detach())
            if given and not (update_each or scalers > 1):
                of[0].update()
            recorder.end_step(sum(losses))


def gan_without_scaler(make: Make) -> None:
    gan(make, scalers=0)


def gan_with_two_scalers(make: Make) -> None:
    gan(make, scalers=2)


def gan_that_updates_after_each(make: Make) -> None:
    gan(make, update_each=True)


def gan_that_zeroes_in_place(make: Make) -> None:
    gan(make, keep=True)


def gan_measured_once(make: Make) -> None:
    """Only the discriminator is measured; the generator follows unmeasured."""
    critic, maker = net(), net(out=4)
    optimizers = [sgd(critic), sgd(maker)]
    scaler = GradScaler("cpu", init_scale=256.0)
    model = nn.ModuleDict({"critic": critic, "maker": maker})
    with make(model, optimizers, scaler=scaler, max_norm=None) as recorder:
        for i in range(STEPS):
            optimizers[0].zero_grad()
            loss = critic(maker(batch(i)).detach()).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizers[0])
            recorder.gradients(loss)
            scaler.step(optimizers[0])
            optimizers[1].zero_grad()
            scaler.scale(-critic(maker(batch(i))).mean()).backward()
            scaler.step(optimizers[1])
            scaler.update()
            recorder.end_step()


def half_under_a_scaler(make: Make) -> None:
    """The second optimizer's loss is small enough to need none."""
    parts = nn.ModuleList([net(), net()])
    optimizers = [sgd(part) for part in parts]
    scaler = GradScaler("cpu", init_scale=256.0)
    with make(parts, optimizers, scaler=scaler) as recorder:
        for i in range(STEPS):
            for optimizer in optimizers:
                optimizer.zero_grad()
            first, second = (loss_of(part, i) for part in parts)
            scaler.scale(first).backward()
            second.backward()
            scaler.unscale_(optimizers[0])
            recorder.gradients(first)
            scaler.step(optimizers[0])
            optimizers[1].step()
            scaler.update()
            recorder.end_step()


def critic_steps(make: Make) -> None:
    """Three steps of the critic for one of the generator, as WGAN takes them, with a penalty."""
    critic, maker = net(), net(out=4)
    optimizers = [torch.optim.Adam(part.parameters(), 1e-3) for part in (critic, maker)]
    model = nn.ModuleDict({"critic": critic, "maker": maker})
    with make(model, optimizers) as recorder:
        for i in range(STEPS):
            for j in range(3):
                optimizers[0].zero_grad()
                real = batch(10 * i + j).requires_grad_()
                (slope,) = torch.autograd.grad(critic(real).sum(), real, create_graph=True)
                penalty = (slope.norm(dim=1) - 1).square().mean()
                loss = critic(maker(batch(i)).detach()).mean() - critic(real).mean() + penalty
                loss.backward()
                recorder.gradients(loss, optimizers=optimizers[0])
                optimizers[0].step()
            optimizers[1].zero_grad()
            (-critic(maker(batch(i))).mean()).backward()
            recorder.gradients(optimizers=optimizers[1])
            optimizers[1].step()
            recorder.end_step()


def by_value(make: Make) -> None:
    model = net()
    optimizer = sgd(model)
    with make(model, optimizer) as recorder:
        for i in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, i)
            loss.backward()
            recorder.gradients(loss)
            clip_grad_value_(model.parameters(), 0.01)
            optimizer.step()
            recorder.end_step()


def lbfgs(make: Make) -> None:
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    with make(model, optimizer, max_norm=1.0) as recorder:
        for i in range(STEPS):

            def closure(i: int = i) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, i)
                loss.backward()
                recorder.gradients(loss)
                clip_grad_norm_(model.parameters(), 1.0)
                return loss

            optimizer.step(closure)
            recorder.end_step()


def scheduled_and_averaged(make: Make) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    average = torch.optim.swa_utils.AveragedModel(model)
    with make(model, optimizer, max_norm=0.1, ema=average) as recorder:
        for i in range(STEPS):
            loss = loss_of(model, i)
            loss.backward()
            recorder.gradients(loss)
            clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            schedule.step()
            average.update_parameters(model)
            optimizer.zero_grad()
            recorder.end_step()


def guarded(make: Make) -> None:
    """A loop that leaves out steps of its own accord, now and then."""
    model = net()
    optimizer = sgd(model)
    with make(model, optimizer, max_norm=0.1) as recorder:
        for i in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, i)
            loss.backward()
            norm = recorder.gradients(loss)
            clip_grad_norm_(model.parameters(), 0.1)
            if norm > 0 and i not in (3, 4, 9):
                optimizer.step()
            recorder.end_step()


SOUND = (
    plain, loss_at_the_end, scaled, scaled_and_fused, disabled_scaler, accumulation, gan,
    gan_without_scaler, gan_with_two_scalers, gan_that_updates_after_each,
    gan_that_zeroes_in_place, gan_measured_once, half_under_a_scaler, critic_steps, by_value,
    lbfgs, scheduled_and_averaged,
)  # fmt: skip


# -- in a wrong order ----------------------------------------------------------------------


def clips_after_the_step(make: Make) -> None:
    model = net()
    optimizer = sgd(model)
    with make(model, optimizer, max_norm=0.1) as recorder:
        for i in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, i)
            loss.backward()
            recorder.gradients(loss)
            optimizer.step()
            clip_grad_norm_(model.parameters(), 0.1)
            recorder.end_step()


def clips_before_unscale(make: Make) -> None:
    model = net()
    optimizer = sgd(model)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with make(model, optimizer, scaler=scaler, max_norm=0.1) as recorder:
        for i in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, i)
            scaler.scale(loss).backward()
            recorder.gradients(loss)
            clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            recorder.end_step()


def bypasses_the_scaler(make: Make) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with make(model, optimizer, scaler=scaler) as recorder:
        for i in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, i)
            scaler.scale(loss).backward()
            recorder.gradients(loss)
            optimizer.step()
            recorder.end_step()


def measures_after_the_step(make: Make) -> None:
    model = net()
    optimizer = sgd(model)
    with make(model, optimizer, max_norm=0.1) as recorder:
        for i in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, i)
            loss.backward()
            clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            recorder.gradients(loss)
            recorder.end_step()


def measures_each_micro_batch(make: Make) -> None:
    model = net()
    optimizer = sgd(model)
    with make(model, optimizer) as recorder:
        for i in range(2 * STEPS):
            loss = loss_of(model, i) / 2
            loss.backward()
            recorder.gradients(loss)
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
                recorder.end_step()


def ends_each_micro_batch(make: Make) -> None:
    model = net()
    optimizer = sgd(model)
    with make(model, optimizer) as recorder:
        for i in range(4 * STEPS):
            loss = loss_of(model, i) / 4
            loss.backward()
            recorder.gradients(loss)
            if i % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
            recorder.end_step()


def forgets_the_end_now_and_then(make: Make) -> None:
    model = net()
    optimizer = sgd(model)
    with make(model, optimizer) as recorder:
        for i in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, i)
            loss.backward()
            recorder.gradients(loss)
            optimizer.step()
            if i % 3 == 1:
                continue
            recorder.end_step()


def measures_now_and_then(make: Make) -> None:
    model = net()
    optimizer = sgd(model)
    with make(model, optimizer) as recorder:
        for i in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, i)
            loss.backward()
            if i % 2:
                recorder.gradients(loss)
            optimizer.step()
            recorder.end_step(loss)


def steps_twice(make: Make) -> None:
    model = net()
    optimizer = sgd(model)
    with make(model, optimizer) as recorder:
        for i in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, i)
            loss.backward()
            recorder.gradients(loss)
            optimizer.step()
            optimizer.step()
            recorder.end_step()


def never_updates(make: Make, updates: int = 0) -> None:
    model = net()
    optimizer = sgd(model)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with make(model, optimizer, scaler=scaler, max_norm=0.1) as recorder:
        for i in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, i)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            recorder.gradients(loss)
            clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            for _ in range(updates):
                scaler.update()
            recorder.end_step()


def updates_twice(make: Make) -> None:
    never_updates(make, updates=2)
