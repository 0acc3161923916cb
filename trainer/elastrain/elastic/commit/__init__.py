"""Whether a step counts: the votes of all ranks, one decision, and the results that come late."""
