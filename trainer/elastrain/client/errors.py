"""What can go wrong between a program and a cluster, each with the way out in its message."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from elastrain.api import names

INSTALL = "helm install elastrain charts/elastrain --namespace elastrain --create-namespace"
"""The command that installs the operator, and with it the CRD."""


class ClusterError(Exception):
    """A call could not be done. ``str()`` says what was asked, why not, and what to do."""


class NotConnected(ClusterError):
    """There is no cluster to talk to: no kubeconfig, no such context, nobody answers, or not as an API server does."""


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


def of_answer(what: str, namespace: str, name: str, code: int, body: str | bytes | None) -> ClusterError:  # noqa: PLR0911 - one return per kind of answer
    """The error for an answer of the API server with HTTP status ``code``. Pure.

    ``what``: the thing tried, as "scale job digits". ``name``: of the job; empty where the call is about no single one.
    """
    text = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
    status = _status(text)
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
                f"cannot {what}: namespace {namespace} has a job {name} already; "
                f"delete it (elastrain delete {name}) or choose another name"
            )
        case 429 | 500 | 502 | 503 | 504:
            return NotConnected(
                f"cannot {what}: the API server is not well: {message}; try again, and see: kubectl get --raw /readyz"
            )
        case _ if status:
            return Refused(f"cannot {what}: {message}")
        case _:
            return of_stranger(what, message)


def of_stranger(what: str, answer: str) -> NotConnected:
    """Something answered that is no API server: a proxy, a login page, a service of another kind. Pure."""
    return NotConnected(
        f"cannot {what}: what answers is no API server of Kubernetes ({_start(answer)}); is the address in the "
        "kubeconfig right (kubectl config view --minify), and no proxy in between ($HTTPS_PROXY, $NO_PROXY)?"
    )


_DENIAL = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)


def _forbidden(what: str, namespace: str, message: str) -> ClusterError:
    found = _DENIAL.search(message)
    if found is None:  # a quota, an admission rule: no role would help
        return Refused(f"cannot {what}: {message}")
    user, verb, where = found["user"], found["verb"], found["namespace"]
    if user == "system:anonymous":
        return NotAllowed(
            f"cannot {what}: the cluster saw no credentials; does the context of the kubeconfig name a user, and is "
            "its login still valid (kubectl auth whoami)?"
        )
    resource = f"{found['resource']}.{found['group']}" if found["group"] else found["resource"]
    role = "view" if verb in {"get", "list", "watch"} else "edit"
    binding = f"rolebinding elastrain-{role} -n {where}" if where else f"clusterrolebinding elastrain-{role}"
    return NotAllowed(
        f"cannot {what}: user {user} may not {verb} {resource} {f'in namespace {where}' if where else 'cluster-wide'}; "
        f"ask for a role with this verb: kubectl create {binding} --clusterrole={role} {_subject(user)}"
        + ("" if where or verb != "list" else f"; in one namespace it may be allowed: -n {namespace}")
    )


def _subject(user: str) -> str:
    account = user.removeprefix("system:serviceaccount:")
    return f"--serviceaccount={account}" if account != user else f"--user={user}"


def _not_found(what: str, namespace: str, name: str, message: str, kind: str) -> ClusterError:
    if kind == "namespaces":
        return Refused(
            f"cannot {what}: there is no namespace {namespace}; kubectl create namespace {namespace}, or choose "
            "another by -n"
        )
    if kind in {names.PLURAL, ""} and name:
        return JobNotFound(
            f"cannot {what}: namespace {namespace} has no job {name}; elastrain list --all-namespaces shows all"
        )
    return Refused(f"cannot {what}: {message}")


def _lacks_resource(status: Mapping[str, Any] | None, text: str) -> bool:
    """Whether the API server does not know the path at all; it says so in plain text, a proxied one by a Status."""
    if status is None:
        return text.strip() == "404 page not found"
    return "could not find the requested resource" in str(status.get("message"))


def _status(text: str) -> Mapping[str, Any] | None:
    """The API server's Status object; None for what is not one (a proxy's page)."""
    try:
        status = json.loads(text)
    except ValueError:
        return None
    return status if isinstance(status, dict) and ("message" in status or status.get("kind") == "Status") else None


def _start(text: str) -> str:
    """Its first words, in one line."""
    line = " ".join(text.split())
    return line if len(line) <= 120 else f"{line[:117]}..."
