"""How a model trains over the ranks of a generation: the seam (``strategy``), replicated, bitwise, sharded."""
