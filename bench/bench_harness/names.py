"""Names that driver and ranks share; without torch, so that a driver starts at once."""

ENV_STATE_MIB = "BENCH_STATE_MIB"
"""Frozen weights below the model of the workload."""
ENV_DEVICE = "BENCH_DEVICE"
ENV_RANKS = "BENCH_RANKS"
"""Ranks at which each has :data:`BATCH_PER_RANK` samples, where the system keeps the global batch. Default: 2."""
ENV_HIDDEN = "BENCH_HIDDEN"
"""Width of the model."""
ENV_PACE = "BENCH_PACE"
"""Seconds that an accelerator, which is played by a wait, takes for a sample."""
BATCH_PER_RANK = 16
"""Samples of a rank in a step."""
WORKLOAD = (
    "Workload: a perceptron of 9.2 million parameters with Adam (110 MB of state), one rank a node, one thread a rank, "
    "over loopback"
)
