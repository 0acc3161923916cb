"""How a command answers: the forms of its output, and its exit codes."""

from __future__ import annotations

from enum import StrEnum

EXIT_FAILED = 1
"""The job that was waited for has failed."""
EXIT_REFUSED = 2
"""Asked wrongly, or refused."""
EXIT_NO_CLUSTER = 3
"""The cluster cannot be reached, does not know elastrain, or does not allow it."""


class Output(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
