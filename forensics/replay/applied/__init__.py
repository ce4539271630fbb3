"""What a step applied, against what it should have: faults with nothing non-finite in them."""
