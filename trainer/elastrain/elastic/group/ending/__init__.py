"""How a rank ends: after its script, by an own failure, or to start again."""
