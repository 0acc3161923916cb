"""The API server: objects with resourceVersions, conflicts, watches from a version, and the garbage collector."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from elastrain.api import names
from elastrain_operator.kube.client import ApiError
from sim.clock import Clock
from sim.network import Refused, Stream

PLACE = "api"
Body = dict[str, Any]
EPOCH = datetime.fromisoformat("2026-01-01T00:00:00+00:00")


class ApiServer:
    def __init__(self, clock: Clock, wire_time: Callable[[], str]) -> None:
        """``wire_time``: the time of day, by its own clock."""
        self.clock = clock
        self.wire_time = wire_time
        self.up = True
        self.refuses_pods = False
        """Pod Security refuses each new pod."""
        self.forbids = False
        """Operators may do nothing but renew their lease."""
        self.objects: dict[str, dict[str, Body]] = {"jobs": {}, "pods": {}, "leases": {}}
        """Kind, name. Bodies are never changed, only replaced."""
        self.budget: set[int] = set()
        """Ordinals of the workers of which an eviction leaves one."""
        self.refuses: dict[str, ApiError] = {}
        """Kinds whose creation an operator is refused, and the answer."""
        self.on_write: Callable[[str, str, Body], None] = lambda *_: None
        """Told of kind, ADDED/MODIFIED/DELETED and body."""
        self._version = 100
        self._uids = 0
        self._history: list[tuple[int, str, Body]] = []
        self._streams: list[tuple[str, Stream]] = []
        self._oldest = 0

    # ---- requests ----------------------------------------------------------------------------------------------------
    def answer(self) -> None:
        if not self.up:
            raise Refused("connection refused")

    def get(self, kind: str, name: str) -> Body | None:
        self.answer()
        return self.objects[kind].get(name)

    def list(self, kind: str) -> tuple[list[Body], str]:
        self.answer()
        shown = [b for b in self.objects[kind].values() if kind != "pods" or is_shown(b)]
        return shown, str(self._version)

    def admit(self, kind: str) -> None:
        self.answer()
        if kind in self.refuses:
            raise self.refuses[kind]

    def create(self, kind: str, body: Body) -> Body:
        self.answer()
        name = body["metadata"]["name"]
        if kind == "pods":
            self._admit(name)
        if name in self.objects[kind]:
            raise ApiError(f"create {name}", 409, "AlreadyExists", f"{kind} {name!r} already exists")
        self._uids += 1
        meta = {**body["metadata"], "uid": f"uid-{self._uids}", "creationTimestamp": self.wire_time(), "generation": 1}
        return self._store(kind, "ADDED", {**body, "metadata": meta})

    def admits(self, body: Body) -> None:
        """A dry run of a pod's creation: an answer, and no object."""
        self.answer()
        self._admit(body["metadata"]["name"])

    def replace(self, kind: str, name: str, change: Callable[[Body], Body], version: str | None = None) -> Body:
        """Change an object; with ``version``, only if that is its resourceVersion."""
        self.answer()
        body = self.objects[kind].get(name)
        if body is None:
            raise ApiError(f"change {name}", 404, "NotFound", f"{kind} {name!r} not found")
        if version is not None and body["metadata"]["resourceVersion"] != version:
            raise ApiError(f"change {name}", 409, "Conflict", "the object has been modified")
        changed = change(body)
        return body if changed == body else self._store(kind, "MODIFIED", changed)

    def delete(self, kind: str, name: str, uid: str | None = None, version: str | None = None) -> None:
        """With ``uid`` or ``version``, only that object or that version of it.

        Pods on a node wait for their kubelet; the rest goes at once.
        """
        self.answer()
        body = self.objects[kind].get(name)
        if body is None or (uid is not None and body["metadata"]["uid"] != uid):
            return
        if version is not None and body["metadata"]["resourceVersion"] != version:
            return
        if kind == "pods" and body["spec"].get("nodeName"):
            if "deletionTimestamp" not in body["metadata"]:
                meta = {**body["metadata"], "deletionTimestamp": self.wire_time()}
                self._store(kind, "MODIFIED", {**body, "metadata": meta})
            return
        self.remove(kind, name)

    def remove(self, kind: str, name: str) -> None:
        """For good."""
        body = self.objects[kind].pop(name, None)
        if body is None:
            return
        marked = {"deletionTimestamp": self.wire_time(), **body["metadata"]}
        self._event(kind, "DELETED", {**body, "metadata": marked})
        if kind == "jobs":
            self.clock.after(0.5, self._collect, body["metadata"]["uid"])

    def watch(self, kind: str, version: str, stream: Stream) -> None:
        self.answer()
        if int(version) < self._oldest:
            raise ApiError(f"watch {kind}", 410, "Expired", "too old resource version")
        for number, event, body in self._history:
            if number > int(version) and body["kind"] == kind:
                stream.send({"type": event, "object": body})
        self._streams.append((kind, stream))

    # ---- faults ------------------------------------------------------------------------------------------------------
    def crash(self) -> None:
        self.up = False
        streams, self._streams = self._streams, []
        for _, stream in streams:
            stream.end()

    def forget_history(self) -> None:
        """Its watch cache is empty: old watches are answered 410."""
        self._oldest, self._history = self._version, []

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _admit(self, pod: str) -> None:
        if self.refuses_pods:
            text = f'pods "{pod}" is forbidden: violates PodSecurity "restricted:latest": hostNetwork'
            raise ApiError(f"create pod {pod}", 403, "Forbidden", text, {"name": pod, "kind": "pods"})

    def _store(self, kind: str, event: str, body: Body) -> Body:
        body = {**body, "kind": kind}
        before = self.objects[kind].get(body["metadata"]["name"])
        self.objects[kind][body["metadata"]["name"]] = body
        return self._event(kind, event, body, before)

    def _event(self, kind: str, event: str, body: Body, before: Body | None = None) -> Body:
        self._version += 1
        body = self._versioned(body)
        if event != "DELETED":
            self.objects[kind][body["metadata"]["name"]] = body
        shown = (event, body) if kind != "pods" else self._selected(event, body, before)
        if shown is not None:
            self._history.append((self._version, *shown))
        self.on_write(kind, event, body)
        for of, stream in self._streams:
            if of == kind and shown is not None:
                stream.send({"type": shown[0], "object": shown[1]})
        self._streams = [s for s in self._streams if s[1].open]
        return body

    def _versioned(self, body: Body) -> Body:
        return {**body, "metadata": {**body["metadata"], "resourceVersion": str(self._version)}}

    def _selected(self, event: str, body: Body, before: Body | None) -> tuple[str, Body] | None:
        """The event of a pod to watches with the operators' selector; None: they do not see the pod."""
        was, is_now = before is not None and is_shown(before), is_shown(body)
        if event != "MODIFIED" or (was and is_now):
            return (event, body) if is_now else None
        if was and before is not None:
            return "DELETED", self._versioned(before)
        return ("ADDED", body) if is_now else None

    def _collect(self, job_uid: str) -> None:
        if not self.up:
            self.clock.after(1.0, self._collect, job_uid)
            return
        for name, body in list(self.objects["pods"].items()):
            if any(o["uid"] == job_uid for o in body["metadata"].get("ownerReferences", ())):
                self.delete("pods", name)


def is_shown(pod: Body) -> bool:
    """Whether the operators' selector matches a pod."""
    return names.LABEL_JOB_UID in pod["metadata"].get("labels", {})


def merged(old: Any, patch: Any) -> Any:
    """``old`` after a JSON merge patch."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result
