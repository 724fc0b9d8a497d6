"""Oracle: attention in float64, from the conventions alone, and how far a result is from it."""
