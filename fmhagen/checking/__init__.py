"""Checking: a kernel against float64 on random tensors."""
