"""The containers of a worker pod: which is the trainer, which one decided the worker's end, which one delays its start.

Of the pod's containers only the trainer ends a worker. Before it, an init container can: the pod fails, and the trainer
never runs. A restartable init container (a sidecar) or one of ``containers`` beside the trainer can only delay the
start, and an ephemeral container nothing: the kubelet counts none for the pod's phase. Names are identities, positions
are not: admission adds containers anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from elastrain.api import names
from elastrain.api.base import Unreadable
from elastrain.api.records import Termination
from elastrain_operator.facts import Ending, Trouble
from elastrain_operator.raw import Raw, mapping, number, objects, text

LARGEST = 2**63 - 1
"""Larger integers in a termination record cannot be written to a status."""
CREATING_PATIENCE = 60.0
"""Seconds after which a container that is still being created, or that still initializes the pod, is reported; the
pod's status shows no cause."""

UNSEEN_PATIENCE = 30.0
"""Seconds after which a pod without a node and without a word of a scheduler is reported."""

_IMAGE = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
    | {"RegistryUnavailable", "SignatureValidationFailed"}
)
_PREPARED = "PodReadyToStartContainers"
_CONFIG = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_VOLUME = re.compile(r"persistent ?volume|volume node affinity|volume binding|storageclass", re.IGNORECASE)


# ---- which is which ------------------------------------------------------------------------------------------------
def trainer_status(body: Raw) -> Raw:
    """Container status of the trainer; empty if the kubelet has not reported it yet."""
    name = _trainer(body)
    statuses = objects(mapping(body.get("status")).get("containerStatuses"))
    return next((c for c in statuses if c.get("name") == name), {})


def etcd(body: Raw) -> str:
    """Endpoints of the etcd that the worker's agent was given; empty: its manifest does not say."""
    name = _trainer(body)
    found = (c for c in objects(mapping(body.get("spec")).get("containers")) if c.get("name") == name)
    variables = (e for c in found for e in objects(c.get("env")))
    return next((text(e.get("value")) for e in variables if e.get("name") == names.ENV_ETCD_ENDPOINTS), "")


def _trainer(body: Raw) -> str:
    """The trainer's name, as the operator has written it on the pod."""
    return next(iter(_noted(body)), names.TRAINER_CONTAINER)


def _noted(body: Raw) -> list[str]:
    """The containers of the template, the trainer first; empty if the annotation was removed."""
    note = text(mapping(mapping(body.get("metadata")).get("annotations")).get(names.CONTAINERS_NOTE))
    return note.split(",") if note else []


def _is_added(body: Raw, container: str) -> bool:
    """Whether the template has no such container; unknown counts as no."""
    noted = _noted(body)
    return bool(noted) and container not in noted


def _sidecars(body: Raw) -> set[str]:
    """Restartable init containers: they run beside the others, and end nothing."""
    given = objects(mapping(body.get("spec")).get("initContainers"))
    return {text(c.get("name")) for c in given if c.get("restartPolicy") == "Always"}


# ---- the end -------------------------------------------------------------------------------------------------------
def ending(body: Raw, at: datetime) -> Ending | None:
    """How the worker ended, observed ``at``; None: it has not. The trainer decides (another container may keep the
    pod's phase at Running), before it an init container, without either the pod."""
    status = mapping(body.get("status"))
    terminated = mapping(mapping(trainer_status(body).get("state")).get("terminated"))
    if terminated:
        return _ended(status, terminated, at, _record(text(terminated.get("message"))))
    if status.get("phase") in ("Failed", "Succeeded"):
        refused = bool(mapping(body.get("spec")).get("nodeName")) and not any(map(_has_run, _statuses(status)))
        by_pod = Ending(at, reason=text(status.get("reason")), message=text(status.get("message")), refused=refused)
        return _unprepared(body, at) or by_pod
    return None


def _statuses(status: Raw) -> list[Raw]:
    return [*objects(status.get("initContainerStatuses")), *objects(status.get("containerStatuses"))]


def _has_run(container: Raw) -> bool:
    states = [mapping(container.get("state")), mapping(container.get("lastState"))]
    return any(mapping(s.get("running") or s.get("terminated")).get("startedAt") for s in states)


def _ended(status: Raw, terminated: Raw, at: datetime, record: Termination | None = None) -> Ending:
    return Ending(
        at=at,
        record=record,
        exit_code=number(terminated.get("exitCode")),
        reason=text(status.get("reason")) or text(terminated.get("reason")),
        message=text(status.get("message")) or text(terminated.get("message")),
        ran=_ran(terminated),
    )


def _unprepared(body: Raw, at: datetime) -> Ending | None:
    """The end by an init container that failed; None: none has."""
    status, sidecars = mapping(body.get("status")), _sidecars(body)
    for container in objects(status.get("initContainerStatuses")):
        name, ended = text(container.get("name")), mapping(mapping(container.get("state")).get("terminated"))
        if not number(ended.get("exitCode")) or name in sidecars:
            continue
        found = replace(_ended(status, ended, at), container=name, added=_is_added(body, name))
        return replace(found, reason="PreflightFailed") if name == names.PREFLIGHT_CONTAINER else found
    return None


def _ran(terminated: Raw) -> float | None:
    """Seconds that a container ran, by its kubelet's clock alone; None: unknown."""
    try:
        ran = datetime.fromisoformat(terminated["finishedAt"]) - datetime.fromisoformat(terminated["startedAt"])
    except (KeyError, TypeError, ValueError):
        return None
    return max(ran.total_seconds(), 0.0)


def _record(message: str) -> Termination | None:
    """The agent's termination record; None if the message is not one (the kubelet's text, a torn write, numbers that no
    agent writes)."""
    try:
        record = Termination.decode(message)
    except Unreadable:
        return None
    numbers = (record.step, record.exit_code, record.signal, record.rank or 0)
    return record if all(abs(n) <= LARGEST for n in numbers) and record.step >= 0 else None


# ---- the start -----------------------------------------------------------------------------------------------------
def trouble(body: Raw) -> Trouble | None:
    """Why the worker does not start, the most specific reason; None: there is no trouble (yet)."""
    pod_name, status = text(mapping(body.get("metadata")).get("name")), mapping(body.get("status"))
    scheduled: Raw = next((c for c in objects(status.get("conditions")) if c.get("type") == "PodScheduled"), {})
    if scheduled.get("status") == "False":
        words = text(scheduled.get("message")) or text(scheduled.get("reason")) or "no reason given"
        reason = "VolumeFailed" if _VOLUME.search(words) else text(scheduled.get("reason")) or "Unschedulable"
        return Trouble(reason, f"pod {pod_name}: {words}")
    spec = mapping(body.get("spec"))
    name = text(spec.get("schedulerName"))
    if name and not (scheduled or spec.get("nodeName") or _statuses(status)) and status.get("phase") == "Pending":
        said = f"no scheduler has looked at it for {UNSEEN_PATIENCE:.0f} s (schedulerName {name})"
        return Trouble("NoScheduler", f"pod {pod_name}: {said}", UNSEEN_PATIENCE)
    found = min(_delays(body, pod_name), key=lambda trouble: trouble.patience, default=None)
    prepared = any(c.get("type") == _PREPARED and c.get("status") == "True" for c in objects(status.get("conditions")))
    return found and replace(found, passes=prepared and found.reason == "ContainerNotCreated")


def _delays(body: Raw, pod_name: str) -> Iterator[Trouble]:
    """What each container that does not do its part yet waits for, in the order in which they start."""
    status, sidecars = mapping(body.get("status")), _sidecars(body)
    init = objects(status.get("initContainerStatuses"))
    ready = sum(_has_done_its_part(c, sidecars) for c in init)
    for container in [*init, *objects(status.get("containerStatuses"))]:
        name, state = text(container.get("name")), mapping(container.get("state"))
        added = ", which admission has added" if _is_added(body, name) else ""
        waiting = mapping(state.get("waiting"))
        if waiting:
            where = f"pod {pod_name}, container {name}{added}"
            yield _waiting(where, pod_name, container, waiting)
        elif container in init and state.get("running") is not None and not _has_done_its_part(container, sidecars):
            where = f"pod {pod_name}, init container {name}{added}"
            yield _initializing(where, container, name in sidecars, f"{ready} of {len(init)} init containers are done")


def _has_done_its_part(container: Raw, sidecars: set[str]) -> bool:
    """Whether the init container lets the next one start: it has ended, or a sidecar's startup probe has passed."""
    if text(container.get("name")) in sidecars:
        return container.get("started") is True
    terminated = mapping(mapping(container.get("state")).get("terminated"))
    return bool(terminated) and number(terminated.get("exitCode")) == 0


def _initializing(where: str, container: Raw, is_sidecar: bool, progress: str) -> Trouble:
    """An init container that runs; the trainer starts after it."""
    began = text(mapping(mapping(container.get("state")).get("running")).get("startedAt")) or "an unknown time"
    what = "has not passed its startup probe; it runs" if is_sidecar else "runs"
    text_ = f"{where}: {what} since {began}, {progress}{_last_end(container)}"
    return Trouble("Initializing", text_, CREATING_PATIENCE)


def _waiting(where: str, pod_name: str, container: Raw, waiting: Raw) -> Trouble:
    """Why one container does not run."""
    reason = text(waiting.get("reason"))
    words = text(waiting.get("message")) or reason
    if reason in _IMAGE:
        return Trouble("ImagePullFailed", f"{where}: image {text(container.get('image')) or '?'}: {reason}: {words}")
    if reason in _CONFIG:
        return Trouble("ContainerConfigFailed", f"{where}: {reason}: {words}")
    if reason == "CrashLoopBackOff":
        return Trouble("ContainerCrashes", f"{where}: {words}{_last_end(container)}")
    return Trouble(
        "ContainerNotCreated",
        f"{where}: not created {CREATING_PATIENCE:.0f} s after the pod, often because a volume cannot be mounted; "
        f"`kubectl describe pod {pod_name}` shows the node's events",
        patience=CREATING_PATIENCE + (1.0 if reason == "PodInitializing" else 0.0),
    )


def _last_end(container: Raw) -> str:
    """How often a container that starts again in its place has ended, and how at last."""
    last = mapping(mapping(container.get("lastState")).get("terminated"))
    if not last:
        return ""
    count, words = number(container.get("restartCount")) or 1, text(last.get("message")).strip()
    often, said = "once" if count == 1 else f"{count} times", f": {words.splitlines()[-1]}" if words else ""
    return f"; it has ended {often}, last with exit code {number(last.get('exitCode'))}{said}"
