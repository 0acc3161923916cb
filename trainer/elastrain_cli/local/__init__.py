"""Local mode: operator and cluster on one machine."""
