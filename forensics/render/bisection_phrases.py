"""Words for a bisection that text and Markdown tell alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from forensics.diagnose.bisection_result import (
    EMULATED,
    REAL,
    BisectionResult,
    BisectStatus,
    ChainLink,
    FaultKind,
    Growth,
    Origin,
    Persistence,
    TensorFacts,
    WhatIf,
)
from forensics.diagnose.located import is_over
from forensics.diagnose.wording import number, percent
from forensics.diagnose.wording import steps as step_count

MOST_NAMES = 3
"""Names of a list that are shown; more are counted, and JSON has them all."""
MOST_SAMPLES = 8
"""Sample indices that are shown."""
WITHOUT_SAMPLES = "without the guilty samples"
"""The trial that tells whether the samples are to blame, as the table of trials calls it."""
_SHORT = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
_KIND = {"nan": "NaN", "inf": "Inf"}
_BY = {
    REAL: " by all ranks, with the real reduction",
    EMULATED: " rank by rank in one process, the reduction emulated",
}
_FP16_END = "fp16 ends at 65,504"


def headline(result: BisectionResult) -> str:
    """``8,218   in forward · aten.bmm → Inf``: the first bad step and what happened there."""
    step = "" if result.first_bad_step is None else f"{result.first_bad_step:,}"
    return "   ".join(filter(None, [step, _happened(result.origin) or result.bad]))


def _happened(origin: Origin | None) -> str:
    if origin is None:
        return ""
    if origin.phase == "outside":
        return "from outside the training: a replay is sound"
    what = origin.operator
    if origin.autograd_node and origin.autograd_node != what:
        what = f"{what} in {origin.autograd_node}"
    bad = _KIND.get(origin.kind.value) or _output_kind(origin)
    where = f"in {origin.phase}" if origin.phase else ""
    if origin.operator == "input":
        return f"the batch itself holds {bad or 'bad values'}"
    place, colon, name = origin.operator.partition(":")
    if colon:
        leaf = {"param": "parameter"}.get(place, place)
        return f"{leaf} {name} is {bad or 'bad'} before the step begins"
    if origin.kind is FaultKind.EXCEPTION:
        return f"{where} · {what} raises"
    if origin.kind is FaultKind.APPLIED:
        return f"{where} · {what}: finite, but wrong"
    if origin.kind is FaultKind.NORM_OVERFLOW:
        return f"{where} · {what} → Inf though every element is finite"
    return f"{where} · {what} → {bad}" if bad else f"{where} · {what}"


def _output_kind(origin: Origin) -> str:
    """What a growth ended in: the kind of the output, else of the chain's first link."""
    if origin.output is not None and (origin.output.nan or origin.output.inf):
        return "NaN" if origin.output.nan else "Inf"
    kinds = [_KIND[link.kind] for link in origin.chain if link.kind in _KIND]
    return kinds[0] if kinds else ""


def details(result: BisectionResult) -> list[tuple[str, str]]:
    """Label and text of each line below the headline, most telling first."""
    origin = result.origin
    lines: list[tuple[str, str]] = []
    if origin is not None:
        lines += _located(origin, result.growth)
        if len(origin.chain) > 1:
            lines.append(("then", _chain(origin.chain[1:])))
    if result.growth is not None:
        lines.append(("root", _growth(result.growth)))
    elif result.root_step is not None and result.root_step != result.first_bad_step:
        lines.append(("root", f"begins at step {result.root_step:,}"))
    if result.first_bad_step is not None:
        lines.append(("rank", ranks(result)))
        lines.append(("samples", samples(result)))
        lines.append(("again", again(result)))
    return [(label, text) for label, text in lines if text]


def _located(origin: Origin, growth: Growth | None) -> list[tuple[str, str]]:
    summary = origin.summary
    if growth is not None:  # it has a line of its own
        summary = summary.partition(f"; {growth.signal} grew from")[0]
    lines = [
        ("what", summary),
        ("where", origin.source_line),
        ("module", origin.module),
        ("tensor", _parameters(origin)),
        *_inputs(origin),
        ("output", facts(origin.output) if origin.output is not None else ""),
    ]
    calls = [call for call in dict.fromkeys(origin.traceback) if call != origin.source_line]
    lines.append(("called", " → ".join(calls[-MOST_NAMES:])))
    return lines


def _parameters(origin: Origin) -> str:
    """The parameter nearest the origin and its element, then how many went bad with it."""
    first = origin.parameter or (origin.parameters[0] if len(origin.parameters) == 1 else "")
    known = origin.element not in ("", "[]")
    at = origin.element if first and known else ""
    others = [name for name in origin.parameters if name != first]
    if not first:
        element = f"element {origin.element}" if known else ""
        return "; ".join(filter(None, [element, names(others)]))
    with_it = f"; and {names(others)}" if others else ""
    return f"{first}{at}{with_it}"


def _inputs(origin: Origin) -> list[tuple[str, str]]:
    """The operator's inputs, a line each."""
    shown = [facts(tensor) for tensor in origin.inputs[:MOST_NAMES]]
    more = len(origin.inputs) - MOST_NAMES
    shown += [f"and {more} more"] if more > 0 else []
    return [("" if number else "inputs", text) for number, text in enumerate(shown)]


def facts(tensor: TensorFacts) -> str:
    """``fp16 (8, 8, 512, 64), 311 of 16,777,216 Inf, abs-max 412``."""
    head = f"{tensor.name} " if tensor.name else ""
    parts = [f"{head}{_SHORT.get(tensor.dtype, tensor.dtype)} {_shape(tensor.shape)}"]
    for count, word in ((tensor.nan, "NaN"), (tensor.inf, "Inf")):
        if count:
            parts.append(f"{count:,} of {tensor.numel:,} {word}")
    if tensor.nan + tensor.inf < tensor.numel:
        parts.append(f"abs-max {number(tensor.absmax)}")
    if tensor.inf and tensor.dtype == "float16":
        parts.append(_FP16_END)
    return ", ".join(parts)


def _shape(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))})" if shape else "scalar"


def _chain(links: Sequence[ChainLink]) -> str:
    """``aten._softmax in blocks.11.attn NaN → loss NaN``."""
    told = []
    for link in links:
        name = f" in {link.name}" if link.name and "." in link.what else f" {link.name}".rstrip()
        told.append(f"{link.what}{name} {_KIND.get(link.kind, link.kind)}".strip())
    return " → ".join(dict.fromkeys(told))


def _growth(growth: Growth) -> str:
    rate = f"{percent(abs(growth.rate - 1))} a step" if growth.rate == growth.rate else ""
    word = "grows" if growth.rate >= 1 else "falls"
    values = f"from {number(growth.first_value)} to {number(growth.last_value)}"
    if abs(growth.rate - 1) >= 1:
        rate = f"×{number(growth.rate)} a step"
    text = f"since step {growth.since_step:,} {growth.signal} {word} {rate}, {values} at "
    text += f"{growth.until_step:,}"
    return f"{text}; {growth.cause}" if growth.cause else text


def ranks(result: BisectionResult) -> str:
    """Which ranks were bad by themselves; empty where only one trained."""
    raised = result.origin is not None and result.origin.kind is FaultKind.EXCEPTION
    if len(result.bad_ranks) > 1:
        named = ", ".join(f"{rank:,}" for rank in result.bad_ranks[:MOST_SAMPLES])
        more = " …" * (len(result.bad_ranks) > MOST_SAMPLES)
        verb = "raise or are bad" if raised else "are bad"
        return f"ranks {named}{more} {verb} by themselves, before the reduction"
    if result.rank is not None and raised:
        return f"rank {result.rank:,} alone: the others' own part of the step is sound"
    if result.rank is not None:
        return f"rank {result.rank:,} alone: the others' own losses and gradients are finite"
    if result.reduction and result.reproduces and result.origin is not None:
        return "none by itself: each one's own loss and gradients are finite"
    return ""


def samples(result: BisectionResult) -> str:
    """Which samples of the batch are to blame."""
    size = f" of {result.batch_size:,}" if result.batch_size else ""
    if not result.samples:
        return result.samples_note
    alone = [trial for trial in result.what_if if trial.change == WITHOUT_SAMPLES]
    if any(
        trial.finite is False and trial.first_bad_step == result.first_bad_step for trial in alone
    ):
        return f"{len(result.samples):,}{size} go bad alone, the others too: not a bad batch"
    if result.batch_size and len(result.samples) == result.batch_size > 1:
        return f"all {result.batch_size:,}: not a bad batch"
    shown = ", ".join(f"{index:,}" for index in result.samples[:MOST_SAMPLES])
    more = f" and {len(result.samples) - MOST_SAMPLES:,} more" * (
        len(result.samples) > MOST_SAMPLES
    )
    of = _of_ranks(result) if result.rank is not None and not result.samples_note else ""
    noun = "sample" if len(result.samples) == 1 else "samples"
    verb = "goes" if len(result.samples) == 1 else "go"
    return f"{noun} {shown}{more}{size} (by index){of} alone {verb} bad"


def _of_ranks(result: BisectionResult) -> str:
    """Whose samples they are: of one rank, or by the same count of each that is bad."""
    if len(result.bad_ranks) <= 1:
        return f" of rank {result.rank:,}"
    return f" of each of ranks {', '.join(map(str, result.bad_ranks[:MOST_SAMPLES]))}"


def again(result: BisectionResult) -> str:
    """Does it come back, and does it persist: two answers."""
    count = result.replays
    replays = f"{count:,} {'replay' if count == 1 else 'replays'}"
    if result.reproduces is None:
        return ""
    if not result.reproduces:
        stays = "stays" if count == 1 else "stay"
        return f"does not reproduce: {replays} from the same state {stays} sound"
    alike = f" ({replays}, all alike)" if count > 1 else ""
    if _raised(result) and result.persistence is not Persistence.PERSISTENT:
        return f"reproduces{alike}, and ended the run"
    persists = {
        Persistence.PERSISTENT: ", and persists after the step",
        Persistence.TRANSIENT: f"; it {is_over(result)}"
        if result.damage_stayed
        else ", and is over after the step"
        if not result.damaged
        else "; the fault is over after the step, its damage stays",
        Persistence.UNKNOWN: "",
    }[result.persistence]
    return f"reproduces{alike}{persists}"


def _raised(result: BisectionResult) -> bool:
    """Did an exception end the run? Then nothing of it is over, whatever the next batch does."""
    raised = result.origin is not None and result.origin.kind is FaultKind.EXCEPTION
    return raised or result.raised


def states(result: BisectionResult) -> str:
    """``13 checkpoints, step 0 to 12,000: 1 good, 12 not needed``."""
    found = result.checkpoints
    if not found:
        return "no saved state"
    count = Counter(state.verdict for state in found)
    noun = "checkpoint" if len(found) == 1 else "checkpoints"
    words = {"good": "good", "bad": "bad", "untestable": "untestable", "untested": "not needed"}
    told = ", ".join(f"{count[k]:,} {word}" for k, word in words.items() if count[k])
    if len(found) == 1:
        return f"1 checkpoint, of step {found[0].step:,}: {told.removeprefix('1 ')}"
    return f"{len(found):,} {noun}, step {found[0].step:,} to {found[-1].step:,}: {told}"


def replay(result: BisectionResult) -> str:
    """How far the replay went, and how faithful it was; empty without one."""
    first, last = result.replayed_from, result.replayed_until
    if first is None or last is None:
        return f"replayed{_BY[result.reduction]}" if result.reduction in _BY else ""
    way = f"replayed step {first:,}" if first == last else f"replayed {first:,} → {last:,}"
    way += _BY.get(result.reduction, "")
    exact = "bit-identical" if result.tolerance == 0 else f"alike within {number(result.tolerance)}"
    if result.departure is not None:
        gone = result.departure
        values = f"{_cell(gone.recorded)} recorded, {_cell(gone.replayed)} replayed"
        return f"{way}: departs from the record at step {gone.step:,} ({gone.column}: {values})"
    if not result.compared:
        return f"{way}: there is no row to compare with"
    if result.compared == 1:
        return f"{way}: faithful, its row is {exact}"
    return f"{way}: faithful, all {result.compared:,} rows {exact}"


def _cell(value: float | str | None) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return value if len(value) <= 16 else f"{value[:12]}…"
    return f"{value!r}"


def outcome(trial: WhatIf, bad_step: int | None) -> str:
    """What a change came to: ``finite, and for the next 50 steps``, ``bad at 8,391``."""
    if trial.finite is None:
        return "cannot be tried"
    here = trial.from_step == bad_step
    start = "" if here else f", from step {trial.from_step:,} on"
    further = trial.until_step - trial.from_step
    if trial.finite and here:
        return f"{trial.stays}, and for the next {step_count(further)}" if further else trial.stays
    if trial.finite:
        return f"{trial.stays} from step {trial.from_step:,} to {trial.until_step:,}"
    if trial.first_bad_step is None or trial.first_bad_step == bad_step:
        return f"still bad{start}"
    return f"bad at {trial.first_bad_step:,}{start}"


def note(trial: WhatIf) -> str:
    """What follows from a trial, or why it cannot be made."""
    return trial.note.removeprefix("cannot be tried: ")


def capsule(result: BisectionResult) -> str:
    """Where it is, and what it takes."""
    if not result.capsule_bytes:
        return result.capsule
    size, units = float(result.capsule_bytes), iter(("kB", "MB", "GB"))
    unit = "B"
    while size >= 1000 and (larger := next(units, "")):
        size, unit = size / 1000, larger
    return f"{result.capsule}   {number(size)} {unit}"


def verdict(result: BisectionResult) -> str:
    """One sentence where nothing was located."""
    head = {
        BisectStatus.HEALTHY: "healthy",
        BisectStatus.NOT_BISECTABLE: "not bisectable",
        BisectStatus.PARTIAL: "interrupted",
        BisectStatus.LOCATED: "located",
    }[result.status]
    reason = result.reason
    return f"{head}: {reason}" if reason else f"{head}."


def names(parameters: Sequence[str]) -> str:
    """The first names, and how many more."""
    shown = ", ".join(parameters[:MOST_NAMES])
    more = len(parameters) - MOST_NAMES
    return f"{shown} and {more:,} more" if more > 0 else shown
