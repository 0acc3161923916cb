"""The private directory of an agent's sockets and pages: where one can be, whatever ``TMPDIR`` says."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

LONGEST = 107
"""Bytes of the path of a Unix socket (``sun_path`` without its end)."""
_WITHIN = len("/elastrain-xxxxxxxx/agent-9999999999.sock")
"""Of a socket within such a directory."""

log = structlog.get_logger()


def places(environ: Mapping[str, str]) -> list[str]:
    """The directories to try, the first one that works; the variables are those of Python's ``tempfile``."""
    wanted = [environ[name] for name in ("TMPDIR", "TEMP", "TMP") if environ.get(name)]
    return list(dict.fromkeys([*wanted, "/tmp", "/var/tmp", "/dev/shm"]))  # noqa: S108 - a private one is made within


def private_directory(among: Sequence[str]) -> tempfile.TemporaryDirectory[str]:
    """A new directory that only this user can enter, in the first of ``among`` in which a socket and a page can be.

    Raises ``OSError`` that says for each why there is none.
    """
    reasons = list[str]()
    for place in among:
        if (surplus := len(os.fsencode(place)) + _WITHIN - LONGEST) > 0:
            reasons.append(f"{place}: {surplus} bytes too long for the path of a Unix socket in it")
            continue
        try:
            directory = tempfile.TemporaryDirectory(prefix="elastrain-", dir=place)
        except OSError as error:
            reasons.append(f"{place}: {error.strerror or error}")
            continue
        try:
            page = Path(directory.name) / "page"
            page.write_bytes(bytes(4096))  # a disk may be full
            page.unlink()
        except OSError as error:
            directory.cleanup()
            reasons.append(f"{place}: {error.strerror or error}")
            continue
        if reasons:
            log.warning("another directory for temporary files is used", directory=directory.name, because=reasons)
        return directory
    raise OSError(
        f"no directory for the agent's socket: {'; '.join(reasons)}: set TMPDIR to a short path of a directory that "
        "this user can write, such as the mount of an emptyDir"
    )
