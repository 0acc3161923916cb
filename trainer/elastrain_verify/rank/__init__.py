"""The processes of a run: the reference in plain torch, and ranks that record what they commit."""
