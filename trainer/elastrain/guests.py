"""Packages beside the core, in the same distribution. The core finds one by name at its use, and imports none."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Any

GUESTS = {
    "elastrain_audit": "audit",
    "elastrain_batches": "batches",
    "elastrain_bitwise": "bitwise",
    "elastrain_convert": "convert",
    "elastrain_dashboard": "dashboard",
    "elastrain_exec": "exec",
    "elastrain_launchers": "launchers",
    "elastrain_pairs": "pairs",
    "elastrain_plan": "plan",
    "elastrain_readers": "readers",
    "elastrain_shares": "shares",
    "elastrain_verify": "verify",
}
"""Package of a guest -> extra of pyproject.toml that installs what it needs."""

_EXTRAS = {"aiohttp": "client", "kubernetes": "client", "libcst": "convert", "matplotlib": "plot"}
_EXTRAS |= {"numpy": "trainer", "opentelemetry": "tracing", "torch": "trainer", "xxhash": "trainer"}
"""Package of others -> extra that installs it."""


def load(module: str) -> Any:
    """The module of a guest, such as ``elastrain_dashboard.app``. Raises ``ModuleNotFoundError``."""
    return importlib.import_module(module)


def way_out(missing: str | None) -> str | None:
    """The command that installs the packages of ``missing``'s extra; None: of no extra. No index has elastrain."""
    extra = ({**_EXTRAS, **GUESTS}).get((missing or "").partition(".")[0])
    needs = [r.split("; extra == ") for r in importlib.metadata.requires("elastrain") or []]
    packages = " ".join(f"'{need}'" for need, *of in needs if of == [f"'{extra}'"])
    return f"{sys.executable} -m pip install {packages}" if extra else None
