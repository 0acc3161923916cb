"""The commit rule as an explicit-state model: every interleaving of a small world (docs/architecture.md)."""
