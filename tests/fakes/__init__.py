"""Stand-ins for what a machine without a GPU lacks: drivers, and torch with device memory."""
