"""The shares of the ranks in proportion to their measured speed, with ``spec.shares: Measured``.

Each vote carries the time per sample of each rank, so that all ranks know the same times at the same step. ``follow``
decides, pure; ``measured`` applies it at step boundaries, and each vote compares what the ranks have applied.
"""
