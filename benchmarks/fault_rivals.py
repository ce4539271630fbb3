"""What others say of the faults: anomaly mode, sherlorch, transformers' DebugUnderflowOverflow.

Each watches the same training, step by step, and nothing else does. Its word is held to what it can
know, never to more:

- *anomaly mode* is right when it names the step and the autograd node of the operator;
- *sherlorch* is asked about the loss of each step (about the gradients, too, where no loss scaler
  handles what overflows), and is right when one of its culprits is the operator, in the right step;
- *DebugUnderflowOverflow* names no operator: it is right with the step and the module.

``partly`` is the right step alone. ``silent`` is a training that went to its end without a word.
"""

from __future__ import annotations

import importlib
import io
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.fault_answers import Answer
from benchmarks.rivals import HOME, INSTALL_S
from forensics.record.assembly import assemble
from forensics.record.config import Config
from forensics.record.null_recorder import NullRecorder
from forensics.record.precision import choose_precision
from forensics.record.recipe import Recipe
from forensics.record.recipe_lookup import find_recipe
from forensics.record.train_step import AmpTrainState


def made(answer: Answer, seed: int | None = None) -> Recipe:
    """The recipe of an answer, configured as it is recorded here."""
    kind = find_recipe(answer.recipe)
    changes = {"device": "cpu", **answer.settings}
    if seed is not None:
        changes["seed"] = seed
    return kind(Config.from_dict(changes, base=kind.defaults))


class Loop:
    """One training, stepped by hand, that keeps the losses of its last step.

    Args:
        answer: whose recipe it trains.
        seed: another seed than the recipe's own.
    """

    def __init__(self, answer: Answer, seed: int | None = None) -> None:
        self.recipe = made(answer, seed)
        config, device = self.recipe.config, torch.device("cpu")
        precision = choose_precision(config.precision, device, lambda _: None)
        self.training = assemble(self.recipe, config, precision, device)
        self.steps = config.steps
        self.losses: list[Tensor] = []
        plain = self.training.loss

        def kept(module: nn.Module, batch: Any) -> Tensor:
            self.losses.append(plain(module, batch))
            return self.losses[-1]

        self.training.loss = kept
        self._state = None
        if self.recipe.step is None:
            self._state = AmpTrainState(
                self.training.model,
                self.training.optimizers,
                self.training.loss,
                precision=precision,
                scaler=self.training.scaler,
                schedulers=self.training.schedulers,
                max_norm=config.max_norm,
                say=lambda _: None,
            )

    @property
    def scaled(self) -> bool:
        """Does a loss scaler skip the steps whose gradients overflow?"""
        scaler = self.training.scaler
        return scaler is not None and scaler.is_enabled()

    def step(self, step: int) -> None:
        """One optimizer step."""
        self.losses.clear()
        batches = self.recipe.batch(step)
        if self._state is not None:
            self._state.step_on(batches)
            return
        assert self.recipe.step is not None
        loss = self.recipe.step(self.training, batches, NullRecorder())
        if isinstance(loss, Tensor):
            self.losses.append(loss)


@contextmanager
def _anomaly_mode() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.set_detect_anomaly(True):
            yield


_NAMED = re.compile(r"Function '(\w+)' returned nan")


def anomaly_mode(answer: Answer, seed: int | None = None) -> str:
    """What ``torch.autograd.set_detect_anomaly`` says."""
    loop = Loop(answer, seed)
    nodes = {_node(operator) for operator in answer.operators}
    with _anomaly_mode():
        for step in range(loop.steps):
            try:
                loop.step(step)
            except Exception as error:  # noqa: BLE001 - whatever ends the training is the answer
                named = _NAMED.search(str(error))
                if named is None:
                    return "other exception"
                return _judged(answer, step, named[1] in nodes, named[1])
    return "silent"


def _judged(answer: Answer, step: int, right: bool, said: str) -> str:
    if step != answer.step:
        return f"late (+{step - answer.step}): {said}" if step > answer.step else f"early: {said}"
    return f"right: {said}" if right else f"partly: {said}"


def _node(operator: str) -> str:
    """The autograd node of an operator: ``aten.log`` → ``LogBackward0``."""
    name = operator.removeprefix("aten.").removeprefix("_")
    return operator if name.endswith("0") else f"{name.title().replace('_', '')}Backward0"


WHOLE = {
    "cross_entropy": ("nll_loss_forward", "log_softmax"),
    "nll_loss": ("nll_loss_forward",),
    "linear": ("addmm", "mm"),
    "normalize": ("div",),
    "weight_norm": ("weight_norm_interface",),
    "matmul": ("bmm", "mm"),
    "batch_norm": ("native_batch_norm",),
    "layer_norm": ("native_layer_norm",),
}
"""Functions of torch that sherlorch names whole, and the operators that they are made of."""


def sherlorch(answer: Answer, seed: int | None = None) -> str:
    """What sherlorch says, asked as its guide shows."""
    tool = importlib.import_module("sherlorch")
    loop = Loop(answer, seed)
    for step in range(loop.steps):
        with tool.trace() as tracker:
            tracker.watch(loop.training.model)
            try:
                loop.step(step)
            except Exception:  # noqa: BLE001 - whatever ends the training is the answer
                return "other exception"
            bad = [loss for loss in loop.losses if tracker.has_issue(loss)]
            if bad:
                names = _culprits(tracker, bad)
                return _judged(answer, step, _names_operator(names, answer), ", ".join(names))
            grads = [p.grad for p in loop.training.model.parameters() if p.grad is not None]
            if not loop.scaled and any(
                g.layout is torch.strided and tracker.has_issue(g) for g in grads
            ):
                return _judged(answer, step, False, "a gradient")
    return "silent"


def _culprits(tracker: Any, bad: Sequence[Tensor]) -> list[str]:
    """The operators that it blames; none where it never saw the loss being made."""
    names = []
    for loss in bad:
        try:
            names += [node.op_name for node in tracker.diagnose(loss).culprits]
        except KeyError:
            continue
    return list(dict.fromkeys(names))


def _names_operator(names: Sequence[str], answer: Answer) -> bool:
    right = {_bare(operator.split(".")[-1]) for operator in answer.operators}
    said = {_bare(name) for name in names}
    said |= {part for name in said for part in WHOLE.get(name, ())}
    return bool(right & said)


def _bare(name: str) -> str:
    return name.strip("_")


def debug_underflow_overflow(answer: Answer, seed: int | None = None) -> str:
    """What transformers' DebugUnderflowOverflow says."""
    debug_utils = importlib.import_module("transformers.debug_utils")
    loop = Loop(answer, seed)
    with redirect_stdout(io.StringIO()):
        debug = debug_utils.DebugUnderflowOverflow(loop.training.model)
        debug.dump_saved_frames = lambda: None  # the frames are looked at below
        for step in range(loop.steps):
            try:
                loop.step(step)
            except Exception as error:  # noqa: BLE001 - whatever ends the training is the answer
                if "DebugUnderflowOverflow" not in str(error):
                    return "other exception"
                module = _module_of(debug.frames[-1], debug.prefix)
                return _judged(answer, step, module == answer.module, module or "(root)")
    return "silent"


def _module_of(frame: str, prefix: str) -> str:
    """The module of a frame, whose head is its name and its class; the root has no name."""
    heads = [line for line in frame.splitlines() if line.startswith(prefix) and "***" not in line]
    return heads[-1].removeprefix(prefix + " ").rsplit(" ", 1)[0].strip()


Says = Callable[[Answer, int | None], str]


def available() -> tuple[dict[str, Says], list[str]]:
    """The tools that can be had, under their names, and a sentence for each that cannot."""
    found: dict[str, Says] = {"anomaly mode": anomaly_mode}
    notes = []
    for name, says, get in (
        ("sherlorch", sherlorch, _get_sherlorch),
        ("DebugUnderflowOverflow", debug_underflow_overflow, _get_transformers),
    ):
        why = get()
        if why:
            notes.append(f"{name} is left out: {why}.")
        else:
            found[name] = says
    return found, notes


def _get_sherlorch() -> str:
    """Put sherlorch, which is Python alone, into a folder of its own; torch is the one here."""
    folder = HOME / "sherlorch"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-input", "--no-deps", "--target"]
    if not (folder / "sherlorch").exists():
        try:
            subprocess.run(
                [*pip, str(folder), "sherlorch"], capture_output=True, check=True, timeout=INSTALL_S
            )
        except (OSError, subprocess.SubprocessError) as error:
            return f"pip could not install it ({type(error).__name__})"
    sys.path.append(str(folder))
    return _imports("sherlorch")


def _get_transformers() -> str:
    return _imports("transformers.debug_utils")


def _imports(module: str) -> str:
    try:
        importlib.import_module(module)
    except ImportError as error:
        return str(error)
    return ""
