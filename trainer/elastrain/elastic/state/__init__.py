"""The training state: captured as one tree, sent to joiners, received, restored."""
