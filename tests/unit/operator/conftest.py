"""Fixtures of the operator's unit tests: builders of plain values."""

from operator_fixtures import make_spec, now, pod_body, quick_loops, terminated

__all__ = ["make_spec", "now", "pod_body", "quick_loops", "terminated"]
