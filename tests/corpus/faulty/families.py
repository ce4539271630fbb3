"""What may follow from what: families of rules that labels allow as consequences."""

SKIPS = frozenset({"high-skip-rate", "dead-run", "loss-scale-collapse"})
NONFINITE = frozenset(
    {
        "nonfinite-loss",
        "nonfinite-gradient",
        "nonfinite-parameter",
        "nonfinite-step-applied",
        "clip-contamination",
        "poisoned-state",
    }
)
DAMAGE = NONFINITE | {"dead-run"}
"""What non-finite weights bring with them."""
SWINGS = frozenset({"loss-scale-oscillation", "high-skip-rate"})
BLOW_UP = frozenset(
    {
        "gradient-explosion",
        "gradient-spike",
        "loss-spike",
        "loss-divergence",
        "weight-growth",
        "clipping-every-step",
        "instability-at-warmup-end",
        "dominant-parameter",
    }
)
"""What an instability may show as."""
STALL = frozenset({"loss-plateau", "gradient-vanishing"})
