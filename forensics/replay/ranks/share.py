"""One rank's own share of a step: its forward and backward, before the reduction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from forensics.record.assembly import told
from forensics.record.tensor_norms import measure
from forensics.replay.ranks.exchange import Exchange
from forensics.replay.ranks.messages import Refusal, Report

DENSE, SPARSE = 1, 2
Accumulate = Callable[[], tuple[float, float, str]]
"""Forward and backward: (mean loss, loss scale in force, why the step is skipped)."""


def own_report(
    accumulate: Accumulate, parameters: Sequence[Tensor]
) -> tuple[Report, BaseException | None]:
    """Run a share; what it raises is told to the others, and kept for rank 0's own answer.

    Args:
        accumulate: leaves the gradients in the parameters.
        parameters: of the run.
    """
    try:
        loss, scale, reason = accumulate()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a loop raises is evidence
        refusal = Refusal(kind=type(error).__name__, told=told(error))
        return Report(refusal=refusal), error
    report = Report(
        loss=loss,
        scale=scale,
        bad_loss=bool(reason),
        bad_gradient=any_bad_gradient(parameters),
        gradients=bytes(map(_kind, parameters)),
    )
    return report, None


def are_reduced(reports: Sequence[Report]) -> bool:
    """Do the ranks go on to the reduction? Every rank answers alike, from the same reports."""
    return not any(report.refusal or report.bad_loss for report in reports)


@torch.no_grad()
def average(exchange: Exchange, reports: Sequence[Report], parameters: Sequence[Tensor]) -> None:
    """The real reduction: every rank's gradients become the mean of all ranks'.

    A rank without a gradient that another one has takes part with zeros.
    """
    own = []
    for index, parameter in enumerate(parameters):
        kinds = {report.gradients[index] for report in reports if report.gradients} - {0}
        if not kinds:
            continue
        if parameter.grad is None:
            zeros = torch.zeros_like(parameter)
            parameter.grad = zeros.to_sparse(1) if kinds == {SPARSE} else zeros
        own.append(parameter.grad)
    exchange.average(own)


def any_bad_gradient(parameters: Sequence[Tensor]) -> bool:
    """Is an element of any gradient not finite?"""
    held = [_values(p.grad) for p in parameters if p.grad is not None]
    return any(measure(held).nonfinite)


def _kind(parameter: Tensor) -> int:
    gradient = parameter.grad
    return 0 if gradient is None else SPARSE if gradient.is_sparse else DENSE


def _values(gradient: Tensor) -> Tensor:
    return gradient.coalesce()._values() if gradient.is_sparse else gradient
