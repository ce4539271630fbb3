"""Log analysis and NaN forensics for PyTorch training runs."""
