"""What a value in a saved state is, by where it stands: parameter, moment, average or scale.

Every training loop has its own names for the parts of a state. These are the usual ones: those of
this program, PyTorch's tutorials, Lightning, Hugging Face, timm, Megatron, fairseq and torchtitan.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

PARAM, BUFFER, OPTIMIZER, EMA = "param", "buffer", "optimizer", "ema"
SCALER, LR, RNG, OTHER = "scaler", "lr", "rng", "other"
SCHEDULER, DATA, CONFIG, CALLBACK = "scheduler", "data", "config", "callback"

_ROLES = (
    # Keyed by their class: ModelCheckpoint{…} is no model, and its best score begins at inf.
    (CALLBACK, re.compile(r"^(stateful_)?callbacks?$")),
    (CONFIG, re.compile(r"^(args|cfg|config\w*|h(yper)?_?param\w*|datamodule_hyper\w*)$")),
    (RNG, re.compile(r"(^|_)rng|random_state|generator_state")),
    (EMA, re.compile(r"(^|_)ema($|_|\d)|averag|(^|_)swa(_|$)|shadow")),
    (OPTIMIZER, re.compile(r"optim|^opt(_state(_dict)?)?$")),
    (SCALER, re.compile(r"scaler|mixedprecision|^amp$|amp_scaling")),
    (SCHEDULER, re.compile(r"sched")),
    (DATA, re.compile(r"^(data|loops|sampler|dataloader|data_?loader_state|train_dataloader)")),
    (
        PARAM,
        re.compile(
            r"model|state_dict|^module$|^net|network|weights|^params|generator|discriminator|"
            r"encoder|decoder|critic|actor|policy|^_modules$|^_parameters$|^_buffers$"
        ),
    ),
)
_BUFFER = re.compile(
    r"(^|\.)(running_mean|running_var|num_batches_tracked|inv_freq|original_inv_freq|rel_pos_index|"
    r"relative_position_index|position_ids|masked_bias|freqs_cis|\w*mask|tril|min_val|max_val|(neg_)?inf|causal\w*|"
    r"(cos|sin)_cached|alibi\w*)\Z|(^|\.)_buffers\."
)
_LR = re.compile(r"(^|\.)(lr|_last_lr\.\d+|base_lrs\.\d+)\Z")


def role_of(part: str) -> str:
    """What a part of a state is by its key; ``other`` where the key does not tell."""
    low = part.lower()
    return next((role for role, pattern in _ROLES if pattern.search(low)), OTHER)


def kind_of(parts: Sequence[str], *, bare: bool) -> str:
    """What one value is, by its path in the state; ``rng`` and ``config`` are no part of it.

    Args:
        parts: keys from the outside in.
        bare: the state is a model's ``state_dict`` and nothing else.
    """
    name = ".".join(parts)
    if _LR.search(name):
        return LR
    role = PARAM
    if not bare:
        # The first key that tells; a wrapper ("state", "app", "trainer") around all tells nothing.
        role = next((r for part in parts[:3] if (r := role_of(part)) != OTHER), OTHER)
    if role == PARAM:
        return BUFFER if is_buffer(name) else PARAM
    return OTHER if role in (SCHEDULER, DATA, CALLBACK) else role


def is_buffer(name: str) -> bool:
    """Is this the usual name of a buffer, as far as a name can tell?"""
    return bool(_BUFFER.search(name))
