"""Known kinds of fault in other shapes, held out: no rule and no tracer was written by them."""
