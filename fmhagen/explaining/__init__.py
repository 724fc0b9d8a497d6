"""Explaining: what a kernel will be and why, before any C++ exists: text, counts, pictures."""
