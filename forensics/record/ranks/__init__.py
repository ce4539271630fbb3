"""Recording a training of many ranks: each one's own loss and gradients, before the reduction."""

from forensics.record.ranks.local_gradients import MeasuringHook

__all__ = ["MeasuringHook"]
