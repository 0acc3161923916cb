"""Notes which scripts are safe, by a digest of their text, in the user's cache. ``elastrain submit`` reads it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from elastrain.api import names
from elastrain_cli.etcd_server import cache_folder


def write(script: bytes, environ: Mapping[str, str] = os.environ) -> None:
    """Note that this text is safe. Raises ``OSError``."""
    path = _path(script, environ)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def hint(name: str, script: bytes, environ: Mapping[str, str] = os.environ) -> str:
    """A line for a script of this text that :func:`write` does not know; empty if there is none to print: the script
    does not use elastrain, so that it cannot be verified, or the user wants no such line."""
    if b"elastrain" not in script or environ.get(names.ENV_VERIFY_HINT) == "off" or _path(script, environ).exists():
        return ""
    return (
        f"{name}: not verified in its present text; elastrain verify {name} checks that it trains the same model on "
        f"any workers ({names.ENV_VERIFY_HINT}=off leaves this line out)"
    )


def _path(script: bytes, environ: Mapping[str, str]) -> Path:
    return cache_folder(environ) / "verified" / hashlib.sha256(script).hexdigest()
