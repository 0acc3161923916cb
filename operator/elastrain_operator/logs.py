"""The operator's logging."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(level: int) -> None:
    """One JSON object a line on stderr, kopf's own messages included."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
            foreign_pre_chain=shared,
        )
    )
    root = logging.getLogger()
    root.handlers, root.level = [handler], level
    for chatty in ("kopf.objects", "kopf.activities.probe", "aiohttp.access"):  # one line per event or probe has no use
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )


def level_of(name: str) -> int:
    """The level named by ``--log-level``. Raises ``ValueError`` for an unknown name."""
    levels = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
    if name.lower() not in levels:
        raise ValueError(f"--log-level {name!r}: must be one of {', '.join(levels)}")
    return levels[name.lower()]
