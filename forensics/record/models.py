"""Small models to record: an MLP, a GPT, a residual CNN and an LSTM, seconds on a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}


class Mlp(nn.Module):
    """A multilayer perceptron: ``depth`` hidden layers and a linear head.

    Args:
        inputs: features in.
        outputs: classes or values out.
        width: of each hidden layer.
        depth: hidden layers.
        activation: a key of ``ACTIVATIONS``.
        gain: factor on the default initialisation of the hidden weights.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        width: int = 32,
        depth: int = 2,
        activation: str = "relu",
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        sizes = [inputs] + [width] * depth
        self.layers = nn.ModuleList(map(nn.Linear, sizes[:-1], sizes[1:]))
        self.activation = ACTIVATIONS[activation]()
        self.head = nn.Linear(sizes[-1], outputs)
        with torch.no_grad():
            for layer in self.layers:
                assert isinstance(layer, nn.Linear)
                layer.weight.mul_(gain)

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, inputs) → (samples, outputs)."""
        hidden = inputs
        for layer in self.layers:
            hidden = self.activation(layer(hidden))
        out: Tensor = self.head(hidden)
        return out


class Attention(nn.Module):
    """Causal self-attention, written out so that every operator shows in a trace."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """(samples, context, width) → the same shape."""
        samples, context, width = hidden.shape
        split = self.query_key_value(hidden).view(samples, context, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        future = torch.ones(context, context, dtype=torch.bool, device=hidden.device).triu(1)
        weights = self.dropout(scores.masked_fill(future, -math.inf).softmax(dim=-1))
        mixed = (weights @ value).transpose(1, 2).reshape(samples, context, width)
        out: Tensor = self.out(mixed)
        return out


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm_2 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """(samples, context, width) → the same shape."""
        hidden = hidden + self.dropout(self.attention(self.norm_1(hidden)))
        out: Tensor = hidden + self.dropout(self.feed_forward(self.norm_2(hidden)))
        return out


class TinyGpt(nn.Module):
    """A decoder-only transformer whose head shares the token embedding's weights.

    Args:
        vocabulary: number of tokens.
        context: longest sequence.
        width: of the residual stream.
        heads: attention heads; divides ``width``.
        depth: blocks.
        dropout: share of activations dropped in training.
    """

    def __init__(
        self,
        vocabulary: int = 32,
        context: int = 24,
        width: int = 32,
        heads: int = 4,
        depth: int = 2,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for embedding in (self.token_embedding, self.position_embedding):
            nn.init.normal_(
                embedding.weight, std=width**-0.5
            )  # logits of unit size through the tie
        self.head.weight = self.token_embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (samples, context) → logits (samples, context, vocabulary)."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with BatchNorm around an identity path."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn_1 = nn.BatchNorm2d(channels)
        self.conv_2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn_2 = nn.BatchNorm2d(channels)

    def forward(self, images: Tensor) -> Tensor:
        """(samples, channels, height, width) → the same shape."""
        hidden = self.bn_1(self.conv_1(images)).relu()
        out: Tensor = (images + self.bn_2(self.conv_2(hidden))).relu()
        return out


class ResidualCnn(nn.Module):
    """A residual CNN with BatchNorm, for small images of one channel."""

    def __init__(self, classes: int = 6, channels: int = 12, depth: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        self.blocks = nn.Sequential(*(ResidualBlock(channels) for _ in range(depth)))
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        """(samples, 1, height, width) → logits (samples, classes)."""
        hidden = self.blocks(self.bn(self.stem(images)).relu())
        logits: Tensor = self.head(hidden.mean(dim=(2, 3)))
        return logits


class Lstm(nn.Module):
    """An LSTM that predicts a sequence's next value."""

    def __init__(self, features: int = 1, width: int = 32, depth: int = 1) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, width, depth, batch_first=True)
        self.head = nn.Linear(width, features)

    def forward(self, values: Tensor) -> Tensor:
        """(samples, context, features) → the same shape."""
        hidden, _ = self.lstm(values)
        out: Tensor = self.head(hidden)
        return out
