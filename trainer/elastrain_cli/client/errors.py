"""Errors between a program and a cluster; each message contains the remedy."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from elastrain.api import names
from elastrain.api.printable import printable, printable_tree
from elastrain_resource.reflector import CallError

INSTALL = "helm install elastrain charts/elastrain --namespace elastrain --create-namespace"
"""The command that installs the operator and its CRD."""


class ClusterError(CallError):
    """A call failed. ``str()`` names the request, the cause and the remedy."""


class NotConnected(ClusterError):
    """No API server answers: no kubeconfig, no such context, no answer, or an answer of another server."""


class NotInstalled(ClusterError):
    """The cluster has no ``ElasticTrainingJob`` resource."""


class JobNotFound(ClusterError):
    """The namespace has no job of this name."""


class JobExists(ClusterError):
    """The namespace already has a job of this name."""


class NotAllowed(ClusterError):
    """The user lacks the permission for this call."""

    denied = True


class Refused(ClusterError):
    """The API server refused the request; the message quotes field, value and rule."""


def of_answer(what: str, namespace: str, name: str, code: int, body: str | bytes | None) -> ClusterError:  # noqa: PLR0911 - one return per kind of answer
    """The error for an answer of the API server with HTTP status ``code``. Pure.

    ``what``: the attempted action, such as "scale job digits". ``name``: the job; empty for a call about several jobs.
    """
    text = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
    status = printable_tree(_status(text))
    message = str(status.get("message") or f"HTTP {code}") if status else f"HTTP {code}: {_start(text)}"
    match code:
        case 401:
            return NotAllowed(
                f"cannot {what}: the cluster does not accept these credentials ({message}): they have expired or "
                "belong to another cluster; log in again, or choose another user (--context, $KUBECONFIG)"
            )
        case 403 if status:
            return _forbidden(what, namespace, message)
        case 404 if _lacks_resource(status, text):
            return NotInstalled(
                f"cannot {what}: this cluster has no {names.KIND}: its operator is not installed; {INSTALL}"
            )
        case 404 if status:
            return _not_found(what, namespace, name, message, str((status.get("details") or {}).get("kind") or ""))
        case 409 if status and status.get("reason") == "AlreadyExists" and names.PLURAL in message:
            return JobExists(
                f"cannot {what}: namespace {namespace} already has a job {name}; "
                f"delete it (elastrain delete {name}) or choose another name"
            )
        case 429 | 500 | 502 | 503 | 504:
            return NotConnected(
                f"cannot {what}: the API server is unhealthy: {message}; try again, and see: kubectl get --raw /readyz"
            )
        case _ if status:
            return Refused(f"cannot {what}: {message}")
        case _:
            return of_stranger(what, message)


def of_stranger(what: str, answer: str) -> NotConnected:
    """The error for an answer that is not from an API server: from a proxy, a login page or another service. Pure."""
    return NotConnected(
        f"cannot {what}: the answer is not from a Kubernetes API server ({_start(answer)}); is the address in the "
        "kubeconfig right (kubectl config view --minify), and no proxy in between ($HTTPS_PROXY, $NO_PROXY)?"
    )


_DENIAL = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)


def _forbidden(what: str, namespace: str, message: str) -> ClusterError:
    found = _DENIAL.search(message)
    if found is None:  # a quota or an admission rule, which no role changes
        return Refused(f"cannot {what}: {message}")
    user, verb, where = found["user"], found["verb"], found["namespace"]
    if user == "system:anonymous":
        return NotAllowed(
            f"cannot {what}: the request had no credentials; does the context of the kubeconfig name a user, and is "
            "its login still valid (kubectl auth whoami)?"
        )
    resource = f"{found['resource']}.{found['group']}" if found["group"] else found["resource"]
    role = "view" if verb in {"get", "list", "watch"} else "edit"
    binding = f"rolebinding elastrain-{role} -n {where}" if where else f"clusterrolebinding elastrain-{role}"
    return NotAllowed(
        f"cannot {what}: user {user} may not {verb} {resource} {f'in namespace {where}' if where else 'cluster-wide'}; "
        f"request a role with this verb: kubectl create {binding} --clusterrole={role} {_subject(user)}"
        + ("" if where or verb != "list" else f"; or select one namespace: -n {namespace}")
    )


def _subject(user: str) -> str:
    account = user.removeprefix("system:serviceaccount:")
    return f"--serviceaccount={account}" if account != user else f"--user={user}"


def _not_found(what: str, namespace: str, name: str, message: str, kind: str) -> ClusterError:
    if kind == "namespaces":
        return Refused(
            f"cannot {what}: there is no namespace {namespace}; kubectl create namespace {namespace}, or choose "
            "another namespace with -n"
        )
    if kind in {names.PLURAL, ""} and name:
        return JobNotFound(
            f"cannot {what}: namespace {namespace} has no job {name}; elastrain list --all-namespaces shows all jobs"
        )
    return Refused(f"cannot {what}: {message}")


def _lacks_resource(status: Mapping[str, Any] | None, text: str) -> bool:
    """Whether the API server lacks the path. It answers in plain text, an aggregated one with a Status."""
    if status is None:
        return text.strip() == "404 page not found"
    return "could not find the requested resource" in str(status.get("message"))


def _status(text: str) -> Mapping[str, Any] | None:
    """The API server's Status object; None for another body, such as a proxy's page."""
    try:
        status = json.loads(text)
    except ValueError:
        return None
    return status if isinstance(status, dict) and ("message" in status or status.get("kind") == "Status") else None


def _start(text: str) -> str:
    """The first words of ``text`` in one line."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= 120 else f"{line[:117]}..."
