"""Which job a pod belongs to: its ownerReferences say so, in the pod's own namespace.

The pod's controller is its job's set of workers (:mod:`elastrain_operator.pod.workerset`), beside which stands the job;
or the job itself, while that set cannot be written. Labels decide nothing. Every user who can create pods can set
any label, and ``kubectl debug --copy-to`` or a copied manifest carries them along. References have force only in that
job's namespace, as for Kubernetes' garbage collector.
"""

from __future__ import annotations

import re

from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain_operator.raw import Raw, mapping, objects, text

MAX_ORDINAL = 2**31 - 1
ADOPTABLE = 10**9
"""Ordinals from here on are never taken over from a pod: none can exhaust the ordinals of its job."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_UID = re.compile(r"[A-Za-z0-9-]{1,64}")
_ORDINAL = re.compile(r"0|[1-9][0-9]{0,9}")


def owner(body: Raw) -> JobKeys | None:
    """The job that controls a pod, by itself or by its set; None: no job does. Kubernetes checks the form of neither
    name nor UID."""
    meta = mapping(body.get("metadata"))
    references = objects(meta.get("ownerReferences"))
    controller = next((r for r in references if r.get("controller") is True), None)
    if controller is not None and _is(controller, names.KIND):
        return _keys(meta, controller)
    jobs = [r for r in references if _is(r, names.KIND)]
    found = _keys(meta, jobs[0]) if len(jobs) == 1 else None
    if found is None or controller is None:  # a user has deleted its set, and the garbage collector its reference
        return found if names.CONTAINERS_NOTE in mapping(meta.get("annotations")) else None
    is_theirs = controller.get("name") == names.worker_set(found.job, found.uid)
    return found if _is(controller, names.SET_KIND) and is_theirs else None


def _is(reference: Raw, kind: str) -> bool:
    return reference.get("kind") == kind and text(reference.get("apiVersion")).split("/")[0] == names.GROUP


def _keys(meta: Raw, reference: Raw) -> JobKeys | None:
    space, name, uid = text(meta.get("namespace")), text(reference.get("name")), text(reference.get("uid"))
    wellformed = _NAME.fullmatch(space) and _NAME.fullmatch(name) and _UID.fullmatch(uid)
    return JobKeys(space, name, uid) if wellformed else None


def ordinal(pod: str, job: str) -> int | None:
    """The ordinal in the name of a worker of ``job``; None: the operator gives no pod this name. A pod's name is unique
    in its namespace and cannot change, so two workers never share an ordinal."""
    start, _, digits = pod.rpartition("-")
    if start != job or not _ORDINAL.fullmatch(digits) or int(digits) > MAX_ORDINAL:
        return None
    return int(digits)


def is_issued(number: int, following: int) -> bool:
    """Whether the job has given out an ordinal. ``following``: ``status.nextOrdinal``, which is written before a pod is
    created; 0: the status was lost, and the pods that exist tell."""
    return number < following or (following == 0 and number < ADOPTABLE)
