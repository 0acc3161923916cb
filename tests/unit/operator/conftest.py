"""Fixtures of the operator's unit tests: builders of plain values."""

from operator_fixtures import make_spec, now, pod_body, quick_loops, quick_reflector, terminated

__all__ = ["make_spec", "now", "pod_body", "quick_loops", "quick_reflector", "terminated"]
