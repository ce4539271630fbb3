"""Faults in forward: an operator outside its domain, or beyond the range of fp32."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forensics.record.config import Config, OptimizerConfig
from forensics.record.faults.own_loop import OneBadBatch, PlainLoop, plain
from forensics.record.healthy import FAULT_STEP, MlpRecipe, build_training, classification_loss
from forensics.record.recipe import Batch, Training, recipe

FEATURES, CLASSES = 8, 4
_DATA = {"samples": 16, "features": FEATURES, "classes": CLASSES, "noise": 1.0}
_DEFAULTS = plain(MlpRecipe.defaults, 12, model={}, data={**_DATA, FAULT_STEP: 5})
_SGD = OptimizerConfig("sgd", lr=1e-3)


class Entropy(nn.Module):
    """−Σ p log p, the way it is written in books."""

    def forward(self, chances: Tensor) -> Tensor:
        """(samples, classes) → scalar."""
        return -(chances * chances.log()).sum(dim=-1).mean()  # FAULT: 0 · log 0


class Policy(nn.Module):
    """Chances of each class, and their entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, 16), nn.Linear(16, CLASSES)
        self.entropy = Entropy()

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """(samples, features) → chances (samples, classes), entropy."""
        chances: Tensor = self.head(self.body(inputs).relu()).softmax(dim=-1)
        return chances, self.entropy(chances)


@recipe("entropy-log-zero", "an entropy bonus takes log(p) where the softmax underflowed to 0")
class EntropyLogZero(OneBadBatch, PlainLoop, MlpRecipe):
    """Inputs that nobody normalised make the policy certain: the other chances are exactly 0."""

    defaults = _DEFAULTS

    def build(self, config: Config) -> Training:
        """The policy; the likelihood's own log is guarded, the entropy's is not."""
        return build_training(config, Policy(), self._loss)

    def spoil(self, inputs: Tensor, targets: Tensor) -> Batch:
        """Inputs in other units."""
        return inputs * 1e4, targets

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        chances, entropy = model(batch[0])
        loss: Tensor = F.nll_loss((chances + 1e-6).log(), batch[1]) - 0.01 * entropy
        return loss


class MaskedAttention(nn.Module):
    """Attention that leaves padded positions out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, hidden: Tensor, padding: Tensor) -> Tensor:
        """(samples, length, width), (samples, length) → (samples, length, width)."""
        scores = self.query(hidden) @ self.key(hidden).mT / math.sqrt(hidden.shape[-1])
        scores = scores.masked_fill(padding[:, None, :], -math.inf)
        mixed: Tensor = scores.softmax(dim=-1) @ self.value(hidden)  # FAULT: a row of -Inf alone
        return mixed


class PaddedClassifier(nn.Module):
    """Attention over positions of four features, their mean, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = MaskedAttention(4), nn.Linear(4, CLASSES)

    def forward(self, inputs: Tensor, padding: Tensor) -> Tensor:
        """(samples, 4 · length), (samples, length) → (samples, classes)."""
        hidden = inputs.unflatten(1, (-1, 4))
        out: Tensor = self.head(self.attention(hidden, padding).mean(dim=1))
        return out


@recipe("fully-masked-softmax", "one sample is all padding: the softmax of a row of -Inf is NaN")
class FullyMaskedSoftmax(PlainLoop, MlpRecipe):
    """Every other row keeps a finite score, and the -Inf beside it is just what it should be."""

    defaults = replace(_DEFAULTS, data={**_DEFAULTS.data, "features": 24})

    def build(self, config: Config) -> Training:
        """The padded classifier and cross-entropy."""
        return build_training(config, PaddedClassifier(), self._loss)

    def batch(self, step: int) -> list[Batch]:
        """Six positions a sample, the last two padded; in one step a whole sample is."""
        batches = []
        for inputs, labels in super().batch(step):
            padding = torch.zeros(len(labels), inputs.shape[1] // 4, dtype=torch.bool)
            padding[:, 4:] = True
            if step == self.config.data[FAULT_STEP]:
                padding[1] = True
            batches.append((inputs, padding, labels))
        return batches

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        inputs, padding, labels = batch
        return F.cross_entropy(model(inputs, padding), labels)


class PairwiseDistance(nn.Module):
    """Mean distance between all pairs, by |a|² + |b|² − 2ab."""

    def forward(self, points: Tensor) -> Tensor:
        """(samples, width) → scalar."""
        squares = (points * points).sum(dim=1)
        table = squares[:, None] + squares[None, :] - 2 * points @ points.T
        others = ~torch.eye(len(points), dtype=torch.bool, device=points.device)
        return table[others].sqrt().mean()  # FAULT: rounding makes a small distance negative


class Spreader(nn.Module):
    """An encoder and the spread of what it encodes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.distance = nn.Linear(FEATURES, 16), PairwiseDistance()

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, features) → scalar."""
        spread: Tensor = self.distance(self.encoder(inputs))
        return spread


@recipe("pairwise-negative-sqrt", "a² + b² − 2ab rounds below 0 for points alike: sqrt gives NaN")
class PairwiseNegativeSqrt(OneBadBatch, PlainLoop, MlpRecipe):
    """Cancellation: far from the origin, two close points differ by less than a rounding error."""

    defaults = replace(_DEFAULTS, optimizer=_SGD)

    def build(self, config: Config) -> Training:
        """The encoder learns to spread its points."""
        return build_training(config, Spreader(), lambda model, batch: -model(batch[0]))

    def spoil(self, inputs: Tensor, targets: Tensor) -> Batch:
        """One sample, again and again, but for its last digits."""
        return 40 * inputs[:1] + 1e-5 * inputs, targets


class GumbelSoftmax(nn.Module):
    """A softmax with Gumbel noise; the uniform numbers are stored in half precision."""

    def forward(self, logits: Tensor) -> Tensor:
        """(samples, classes) → the same shape."""
        uniform = torch.rand(logits.shape, device=logits.device).half().float()
        noise = -torch.log(-torch.log(uniform))  # FAULT: half rounds 0.9998 up to 1
        return (logits + noise).softmax(dim=-1)


@recipe("gumbel-rounding", "uniform noise rounded up to 1 in fp16: −log(−log(1)) is Inf")
class GumbelRounding(PlainLoop, MlpRecipe):
    """One number in four thousand rounds up: when, is up to the random generator's state."""

    defaults = replace(
        _DEFAULTS, steps=20, seed=4, optimizer=OptimizerConfig("sgd", lr=1e-2), data=_DATA
    )

    def build(self, config: Config) -> Training:
        """A body, and noisy choices that should not be too sure."""
        model = nn.Sequential()
        model.add_module("body", nn.Linear(FEATURES, 16))
        model.add_module("gumbel", GumbelSoftmax())
        return build_training(config, model, self._loss)

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        chances: Tensor = model(batch[0])
        return chances.square().sum(dim=-1).mean()


class KlDivergence(nn.Module):
    """From a Gaussian with a diagonal covariance to the standard one."""

    def forward(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """Both (samples, latents) → scalar."""
        terms = mean.square() + log_variance.exp() - 1 - log_variance  # FAULT: Inf above 88.7
        return 0.5 * terms.sum(dim=-1).mean()


class GaussianEncoder(nn.Module):
    """The encoder of a VAE and its regulariser."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.log_variance = nn.Linear(FEATURES, 4), nn.Linear(FEATURES, 4)
        self.kl = KlDivergence()

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, features) → scalar."""
        divergence: Tensor = self.kl(self.mean(inputs), self.log_variance(inputs))
        return divergence


@recipe("kl-exp-overflow", "a VAE's log-variance passes 88.7 on an outlier: exp() overflows fp32")
class KlExpOverflow(OneBadBatch, PlainLoop, MlpRecipe):
    """The network that puts out a logarithm has never seen inputs of that size."""

    defaults = _DEFAULTS

    def build(self, config: Config) -> Training:
        """The encoder; its regulariser alone is the loss."""
        return build_training(config, GaussianEncoder(), lambda model, batch: model(batch[0]))

    def spoil(self, inputs: Tensor, targets: Tensor) -> Batch:
        """An outlier batch."""
        return inputs * 200, targets


@recipe("empty-parameter", "a parameter made by torch.empty() and never filled: NaN from step 0")
class EmptyParameter(PlainLoop, MlpRecipe):
    """What empty() returns is whatever the memory held; here, torch's fill for such memory."""

    defaults = replace(_DEFAULTS, steps=6, data=_DATA)

    def build(self, config: Config) -> Training:
        """A classifier with a learned background."""
        return build_training(config, Background(), classification_loss)


class Background(nn.Module):
    """A learned vector is added to the hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(FEATURES, 16), nn.Linear(16, CLASSES)
        self.background = nn.Parameter(_uninitialised(16))  # FAULT

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, features) → (samples, classes)."""
        out: Tensor = self.head(self.body(inputs) + self.background)
        return out


def _uninitialised(size: int) -> Tensor:
    """``torch.empty``, filled with NaN the way torch does it to make such mistakes show."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        return torch.empty(size)
    finally:
        torch.use_deterministic_algorithms(before)
