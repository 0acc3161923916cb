"""A loop body of the script: its backward, what becomes of its step, and what runs between two bodies."""
