"""Where exactly: bisection of checkpoints, replay, operator tracing. Needs torch."""
