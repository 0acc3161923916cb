"""What can go wrong between a program and a cluster, each with the way out in its message."""

from __future__ import annotations

import json

from elastrain.api import names


class ClusterError(Exception):
    """A call could not be done. ``str()`` says what was asked, why not, and what to do."""


class NotConnected(ClusterError):
    """There is no cluster to talk to: no kubeconfig, no such context, or nobody answers."""


class NotInstalled(ClusterError):
    """The cluster does not know ``ElasticTrainingJob``."""


class JobNotFound(ClusterError):
    """There is no job of this name."""


class JobExists(ClusterError):
    """There is a job of this name already."""


class NotAllowed(ClusterError):
    """The cluster does not let this user do that."""


class Refused(ClusterError):
    """The API server refused what was sent, in its own words: field, value and rule."""


def of_answer(what: str, namespace: str, name: str, code: int, body: str | bytes | None) -> ClusterError:
    """The error for an answer of the API server with HTTP status ``code``. Pure.

    ``what``: the thing tried, as "scale job digits". ``name``: of the job; empty where the call is about no single one.
    """
    reason, message = _words(code, body)
    match code:
        case 404 if not name or "could not find the requested resource" in message:
            return NotInstalled(
                f"cannot {what}: this cluster has no ElasticTrainingJob; install the operator: "
                "helm install elastrain charts/elastrain"
            )
        case 404:
            return JobNotFound(
                f"cannot {what}: namespace {namespace} has no job {name}; elastrain list --all-namespaces shows all"
            )
        case 401:
            return NotAllowed(f"cannot {what}: the cluster does not accept these credentials; log in again ({message})")
        case 403:
            return NotAllowed(f"cannot {what}: {message}; ask for a role with this verb in namespace {namespace}")
        case 409 if reason == "AlreadyExists" and names.PLURAL in message:
            return JobExists(
                f"cannot {what}: namespace {namespace} has a job {name} already; "
                f"delete it (elastrain delete {name}) or choose another name"
            )
        case _:
            return Refused(f"cannot {what}: {message}")


def of_connection(what: str, server: str, error: BaseException) -> NotConnected:
    """Nobody answered. Pure."""
    words = str(error) or type(error).__name__
    return NotConnected(
        f"cannot {what}: no answer from {server} ({words}); "
        "is the cluster up, and the right one chosen (--context, $KUBECONFIG)?"
    )


def _words(code: int, body: str | bytes | None) -> tuple[str, str]:
    """Reason and message of the API server's Status object; what is not one (a proxy's page) is quoted."""
    text = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
    try:
        status = json.loads(text)
        return str(status.get("reason") or ""), str(status.get("message") or f"HTTP {code}")
    except (ValueError, AttributeError):
        return "", f"HTTP {code}: {text[:200]}"
