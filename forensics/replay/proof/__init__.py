"""What was found, proven by replay: which samples, does it persist, what mends it."""
