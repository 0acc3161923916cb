"""Reads kubeconfigs for messages and completion. The ``kubernetes`` package itself connects to clusters."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml


def places(kubeconfig: str | None = None, environ: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """The paths of kubeconfigs: ``kubeconfig``, else ``$KUBECONFIG`` (several, as in PATH), else ``~/.kube/config``."""
    named = kubeconfig or environ.get("KUBECONFIG")
    if not named:
        return (Path.home() / ".kube" / "config",)
    return tuple(Path(part).expanduser() for part in named.split(os.pathsep) if part)


def contexts(files: Sequence[Path]) -> tuple[str, ...]:
    """Names of the contexts in ``files``; skips files that are unreadable or not kubeconfigs."""
    found: dict[str, None] = {}
    for file in files:
        try:
            document = yaml.safe_load(file.read_text(encoding="utf-8"))
            found |= dict.fromkeys(str(context["name"]) for context in document.get("contexts") or [])
        except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError):
            continue  # the connection reports the fault of the file
    return tuple(found)


def why_not(
    error: BaseException, files: Sequence[Path], context: str | None, environ: Mapping[str, str] = os.environ
) -> str:
    """Why the kubeconfig yields no connection, and the remedy; ``error`` is the error of reading ``files``."""
    named = "$KUBECONFIG" if environ.get("KUBECONFIG") else "the kubeconfig"
    if not any(file.exists() for file in files):
        missing = " and ".join(map(str, files))
        return (
            f"there is no kubeconfig: {missing} does not exist; copy your cluster's kubeconfig there, or name it in "
            "$KUBECONFIG. Without a cluster: elastrain run FILE trains on this machine"
        )
    known = contexts(files)
    if context and context not in known:
        near = difflib.get_close_matches(context, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known) or 'none'}"
        return f"{named} has no context {context}; {hint}"
    where = ", ".join(str(file) for file in files if file.exists())
    return f"{named} cannot be used ({where}): {_words(error)}; kubectl config view shows how it is read"


def _words(error: BaseException) -> str:
    """The error in one line."""
    if isinstance(error, KeyError):
        return f"it lacks {error.args[0]!r}"
    return " ".join(str(error).split()) or type(error).__name__
