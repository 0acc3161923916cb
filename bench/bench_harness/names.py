"""Names that driver and ranks share; without torch, so that a driver starts at once."""

ENV_STATE_MIB = "BENCH_STATE_MIB"
"""Frozen weights below the model of the workload."""
ENV_DEVICE = "BENCH_DEVICE"
ENV_NUMERICS = "BENCH_NUMERICS"
"""JSON for the ranks of ``bench/numerics.py``: ``numerics``, ``loader`` (options of ``job.dataloader``), ``steps`` and
``times`` (a file)."""
WORKLOAD = (
    "Workload: a perceptron of 9.2 million parameters with Adam (110 MB of state), one rank a node, one thread a rank, "
    "over loopback"
)
