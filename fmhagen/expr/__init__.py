"""expr: the expressions of mask and score functions, and their readers."""
