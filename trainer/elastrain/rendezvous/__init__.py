"""Forms generations: pure decisions (``decide``), the executor (``membership``), torchrun's handler (``torchrun``).

Only ``torchrun`` imports torch.
"""
