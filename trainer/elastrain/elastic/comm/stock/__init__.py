"""torch's own process groups: NCCL and gloo, how they are formed, watched and ended."""
