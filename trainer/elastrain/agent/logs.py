"""The agent's log: one JSON object per line, or plain text on a terminal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path

import structlog

ENV_AGENT_LOG = "ELASTRAIN_AGENT_LOG"
"""A file for the agent's own log lines. Absent: standard error, mixed with the ranks' output."""


def configure(environ: Mapping[str, str]) -> None:
    """Send the records of structlog and the standard library to one destination. Raises ``OSError`` if the file cannot
    be opened."""
    path = environ.get(ENV_AGENT_LOG)
    handler = logging.FileHandler(Path(path)) if path else logging.StreamHandler(sys.stderr)
    terminal = not path and sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    render = structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
