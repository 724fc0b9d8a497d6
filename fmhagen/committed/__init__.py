"""Committed: the kernels under generated/, what they cost, and which specs have kernels."""
