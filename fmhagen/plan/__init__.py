"""Plan: what a decided kernel is; all that a template may print and a runtime must know."""
