"""Synthetic data made from seeds: every batch is a pure function of the seed and the step.

Nothing here touches the global generators, so data and dropout never disturb each other, and a
batch can be made again at any time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_TASK = 0
"""Stream of what stays the same over a run: prototypes, transitions."""


def generator(seed: int, step: int | None = None, micro: int = 0) -> torch.Generator:
    """A generator of its own for each (seed, step, micro-batch); without a step, for the task.

    The three are spread by odd constants, so that neighbours share no stream.
    """
    stream = _TASK if step is None else 1 + step
    mixed = seed * 0x9E3779B97F4A7C15 + stream * 0xBF58476D1CE4E5B9 + micro * 0x94D049BB133111EB
    return torch.Generator().manual_seed(mixed % 2**63)


def clusters(
    seed: int,
    step: int,
    micro: int = 0,
    *,
    samples: int = 32,
    features: int = 16,
    classes: int = 8,
    noise: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Points around one centre a class.

    Returns:
        Inputs (samples, features) float32 of about unit size, and labels (samples,) int64.
    """
    centres = torch.randn(classes, features, generator=generator(seed))
    draw = generator(seed, step, micro)
    labels = torch.randint(0, classes, (samples,), generator=draw)
    inputs = centres[labels] + noise * torch.randn(samples, features, generator=draw)
    return inputs, labels


def linear_targets(
    seed: int,
    step: int,
    micro: int = 0,
    *,
    samples: int = 32,
    features: int = 16,
    noise: float = 0.1,
) -> tuple[Tensor, Tensor]:
    """Gaussian inputs and a noisy linear function of them.

    Returns:
        Inputs (samples, features) and targets (samples, 1), both float32 of about unit size.
    """
    weights = torch.randn(features, 1, generator=generator(seed)) / math.sqrt(features)
    draw = generator(seed, step, micro)
    inputs = torch.randn(samples, features, generator=draw)
    return inputs, inputs @ weights + noise * torch.randn(samples, 1, generator=draw)


def tokens(
    seed: int,
    step: int,
    micro: int = 0,
    *,
    samples: int = 8,
    context: int = 24,
    vocabulary: int = 32,
    successors: int = 3,
) -> tuple[Tensor, Tensor]:
    """Sequences in which each token has a few equally likely successors.

    The least possible loss is log(successors); an untrained model starts at log(vocabulary).

    Returns:
        Inputs and next tokens, both (samples, context) int64.
    """
    table = torch.stack(
        [
            torch.randperm(vocabulary, generator=generator(seed, None, token))[:successors]
            for token in range(vocabulary)
        ]
    )
    draw = generator(seed, step, micro)
    choices = torch.randint(0, successors, (samples, context), generator=draw)
    sequence = [torch.randint(0, vocabulary, (samples,), generator=draw)]
    for position in range(context):
        sequence.append(table[sequence[-1], choices[:, position]])
    whole = torch.stack(sequence, dim=1)
    return whole[:, :-1], whole[:, 1:]


def images(
    seed: int,
    step: int,
    micro: int = 0,
    *,
    samples: int = 16,
    size: int = 8,
    classes: int = 6,
    noise: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """One smooth pattern a class, under noise.

    Returns:
        Images (samples, 1, size, size) float32, and labels (samples,) int64.
    """
    coarse = torch.randn(classes, 1, 3, 3, generator=generator(seed))
    patterns = 2.0 * torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    draw = generator(seed, step, micro)
    labels = torch.randint(0, classes, (samples,), generator=draw)
    return patterns[labels] + noise * torch.randn(samples, 1, size, size, generator=draw), labels


def waves(
    seed: int,
    step: int,
    micro: int = 0,
    *,
    samples: int = 16,
    context: int = 24,
    noise: float = 0.1,
) -> tuple[Tensor, Tensor]:
    """Sine waves of random frequency and phase, each value followed by the next.

    Returns:
        Inputs and next values, both (samples, context, 1) float32.
    """
    draw = generator(seed, step, micro)
    frequency = 0.2 + 0.6 * torch.rand(samples, 1, generator=draw)
    phase = 2 * math.pi * torch.rand(samples, 1, generator=draw)
    time = torch.arange(context + 1, dtype=torch.float32)
    clean = torch.sin(frequency * time + phase)
    wave = clean + noise * torch.randn(samples, context + 1, generator=draw)
    return wave[:, :-1, None], wave[:, 1:, None]
