"""Which column of the step table a metric of a stranger's log is, by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from forensics.errors import UsageError
from forensics.runlog.csv_reader.header import CANONICAL_OF as ALIASES
from forensics.runlog.schema import CANONICAL_NAMES, spec_of

_RUN_PREFIX = re.compile(r"^.+ - (?=[^-]+$)")
"""``my-run-7 - train/loss``: a chart exported from a dashboard names the run first."""
_PARTS = re.compile(
    r"^(?:train|training|trainer|optim|optimizer|metrics|perf|stats|data|fields)[/._:]"
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
"""Where a word begins in ``TrainLoss``."""
_RATE = re.compile(r"^(?:lr|learning_rate)[-/_](?!\d)[\w/.]*$")
"""``lr-AdamW``, ``lr-SGD/pg1``, ``lr/default``: the rate of an optimizer's first group."""
_VALIDATION = frozenset(("val", "valid", "validation", "eval", "evaluation", "test", "dev"))
_EMPTY = frozenset(
    (
        *("train", "training", "trainer", "optim", "optimizer", "optimization", "metrics"),
        *("scalars", "stats", "perf", "global", "total", "overall", "mean", "avg", "average"),
        *("step", "batch", "iter", "log", "logs"),
    )
)
"""Words beside a metric's name that do not change what it is."""
_HOLDERS = frozenset(
    (
        *("progress", "state", "trainer_state", "info", "meta", "metadata", "counters", "counter"),
        *("position", "global", "train", "training", "trainer"),
    )
)
"""What objects are called that hold a record's step and epoch beside its metrics."""
_OWN_STEPS = frozenset(
    (
        *("global_step", "num_updates", "opt_step", "optim_step", "optimizer_step"),
        *("global_iter", "global_iteration"),
    )
)
"""Steps that are called so of whole trainings only, whatever object they lie in."""
_JUDGED = frozenset(("lr", "grad_l2_pre_clip", "grad_l2_post_clip", "scaler_scale"))
_COUNTS = (
    *("opt_step", "optim_step", "grad_step", "gradient_step", "gradient_steps", "train_iter"),
    *("update", "updates", "global_iter", "global_iteration", "it", "iters"),
    *("global_batch", "batch_idx", "batch_index"),
)
"""What loops of people's own call their steps; those of batches may count anew in each epoch."""
_ENVIRONMENT = (
    *("timesteps", "total_timesteps", "num_timesteps", "timesteps_total", "env_steps"),
    *("total_env_steps", "environment_steps", "num_env_steps_sampled", "time/total_timesteps"),
)
"""Steps of reinforcement learning's environments: many of them make an update."""
_CLIPPED = ("grad_norm_post_clip", "post_clip_grad_norm")
_MORE = {
    "step": (
        "current_steps",
        "num_updates",
        "step_num",
        "total_steps_done",
        "n_iter",
        "iterations",
        "time/iterations",
        *_COUNTS,
        *_ENVIRONMENT,
    ),
    "lr": (
        "lrs",
        "learning_rates",
        "lr_abs",
        "lr/pg0",
        "lr_adam",
        "lr_adamw",
        "lr_sgd",
        "optim/learning_rate_group0",
    ),
    "grad_l2_pre_clip": (
        "gnorm",
        "grad_norm_total",
        "total_grad_norm",
        "total_norm",
        "grad_norm_before_clip",
        "gradient_norm_before_clip",
        "grad_2.0_norm_total",
        "norm",
        "grad norm",
        "l2_norm/grad/global",
        "gradnorm",
        "grads/norm",
        "grad_norm_l2",
        "grad_norm_raw",
        "grad_norm_unclipped",
        "unclipped_grad_norm",
        "grad_norm_pre_clip",
        "pre_clip_grad_norm",
    ),
    "grad_l2_post_clip": (
        "grad_norm_after_clip",
        "clipped_grad_norm",
        "grad_norm_clipped",
        *_CLIPPED,
    ),
    "loss": (
        "lm loss",
        "lm-loss",
        "lm_loss",
        "lm-loss-training/lm loss",
        "lm loss/lm loss",
        "celoss",
        "crossentropyloss",
        "reduced_train_loss",
        "loss_total",
        "total_loss",
        "loss/total",
        "loss_metrics/global_avg_loss",
        "mean_loss",
        "epoch_loss",
    ),
    "skipped": (
        *("step_skipped", "is_skipped", "was_skipped", "skip_step", "update_skipped"),
        *("skipped_update", "optimizer_skipped", "optimizer_step_skipped"),
    ),
    "scaler_scale": ("loss-scale", "loss-scale/loss-scale", "fp16_scale", "amp_scale"),
    "val_loss": ("validation loss", "valid/loss", "test_loss", "test/loss", "val/loss_epoch"),
    "time_s": ("train/time", "elapsed_s", "wall_clock_s"),
    "tokens_per_s": ("tokens_per_sec", "tps", "throughput(tps)", "train/tokens_per_second"),
}
_CANONICAL_OF = {
    **ALIASES,
    **{alias: name for name, aliases in _MORE.items() for alias in aliases},
}


def bare_name(name: str) -> str:
    """A metric's name in lower case, without quotes and without the run's name in front."""
    return _RUN_PREFIX.sub("", name.strip().strip('"').strip()).lower()


def split_humps(name: str) -> str:
    """``TrainLoss`` as ``Train_Loss``: words that only a capital tells apart."""
    return _HUMP.sub("_", name)


@lru_cache(maxsize=4096)
def canonical_name(name: str) -> str | None:
    """The column that a metric is, or None where its name does not tell.

    Case, blanks, a run's name in front (``run - train/loss``) and a part in front
    (``train/grad_norm``) make no difference, nor whether words are joined by ``_`` or by a capital
    (``GradNorm``); ``eval/loss`` and ``val_loss`` are the validation.
    """
    found = _canonical(bare_name(name))
    return (
        found
        if found is not None or not _HUMP.search(name)
        else _canonical(bare_name(split_humps(name)))
    )


def _canonical(bare: str) -> str | None:
    half, _, other = bare.partition("/")
    if half == other:  # Megatron's tags: grad-norm/grad-norm
        bare = half
    for key in dict.fromkeys((bare, re.sub(r"[\s-]+", "_", bare))):
        if spec_of(key) is not None:
            return key
        if key in _CANONICAL_OF:
            return _CANONICAL_OF[key]
    if _RATE.match(bare):
        return "lr"
    if (counted := _counter_within(bare)) is not None:
        return counted
    stripped = _PARTS.sub("", bare)
    return _canonical(stripped) if stripped != bare else _by_words(bare)


def _counter_within(bare: str) -> str | None:
    """The step or epoch of a record in an object within it: ``progress/global_step``."""
    outer, separator, name = bare.replace(".", "/").rpartition("/")
    if not separator:
        return None
    target = "epoch" if name == "epoch" else _CANONICAL_OF.get(name, name)
    words = set(re.split(r"[/_\s-]+", outer))
    if target not in ("step", "epoch") or not words.isdisjoint(_VALIDATION):
        return None
    held = outer.rpartition("/")[2] in _HOLDERS
    return target if held or name in _OWN_STEPS else None


def _by_words(bare: str) -> str | None:
    """The column that is left when words that say nothing of it are taken away.

    ``optimization/grad_norm``, ``loss/train/total``, ``losses/eval/mean_loss``.
    """
    words = [word for word in re.split(r"[/._:\s-]+", bare) if word]
    validation = not _VALIDATION.isdisjoint(words)
    telling = [word for word in words if word not in _EMPTY and word not in _VALIDATION]
    if telling and {"loss", "losses"}.issuperset(telling):
        return "val_loss" if validation else "loss"
    left = "_".join(telling)
    target = left if spec_of(left) is not None else _CANONICAL_OF.get(left)
    return target if not validation and target in _JUDGED else None


def name_columns(names: Iterable[str]) -> dict[str, str]:
    """Canonical names of a log's metrics, as far as their names tell.

    Where several are called alike (``loss`` and ``train/loss``), the first in the order of the
    log is taken, but one that bears the canonical name itself goes before; of several steps the
    optimizer's.

    Returns:
        Name in the log → canonical name, for those that have one.
    """
    there = list(names)
    steps = sorted((name for name in there if canonical_name(name) == "step"), key=step_rank)
    exact = [name for name in there if spec_of(name) is not None]
    chosen: dict[str, str] = {}
    for name in dict.fromkeys((*steps, *exact, *there)):
        target = canonical_name(name)
        if target is not None and target not in chosen.values():
            chosen[name] = target
    return chosen


def mapped_names(there: Iterable[str], mapping: Mapping[str, str]) -> dict[str, str]:
    """Name in the log → canonical name, as the user maps them (runs' names may be left out)."""
    known = {name.strip(): name for name in there}
    known |= {_RUN_PREFIX.sub("", name): name for name in reversed(list(known.values()))}
    chosen: dict[str, str] = {}
    for target, source in mapping.items():
        if spec_of(target) is None:
            raise UsageError(
                f"{target!r} is no column of the step table",
                where="--map",
                hint=f"columns are {', '.join(CANONICAL_NAMES)}, val_loss, epoch …",
            )
        if source.strip() not in known:
            some = ", ".join(list(known)[:12])
            raise UsageError(f"the log has no {source!r}", where="--map", hint=f"it has {some}")
        chosen[known[source.strip()]] = target
    return chosen


_STEP_NAMES = (
    "step",
    "train/global_step",
    "trainer/global_step",
    "global_step",
    "num_updates",
    "iteration",
    "iter",
    "_step",
)


def step_rank(name: str) -> int:
    """Which of several step-like names is the optimizer's step: the lower the likelier.

    A dashboard's own ``_step`` counts calls of its logger, the trainer's name counts steps; those
    of an environment are taken where nothing else counts.
    """
    bare = bare_name(name)
    if bare.rpartition("/")[2] in _ENVIRONMENT:
        return len(_STEP_NAMES) + 1
    return _STEP_NAMES.index(bare) if bare in _STEP_NAMES else len(_STEP_NAMES)
