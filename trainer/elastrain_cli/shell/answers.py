"""Output formats and exit codes of the commands."""

from __future__ import annotations

from enum import StrEnum

EXIT_FAILED = 1
"""The awaited job failed."""
EXIT_REFUSED = 2
"""The request is invalid, or was refused."""
EXIT_NO_CLUSTER = 3
"""The cluster is unreachable, lacks elastrain, or denies access."""


class Output(StrEnum):
    """Format of the output."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"
