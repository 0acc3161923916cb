"""The one undo: what a loop body changes of the tracked objects, and how it is put back."""
