"""Collects the state of all jobs and publishes changes to the browsers once a second."""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from elastrain.api import names
from elastrain_cli.client import Event, Refused, Worker
from elastrain_cli.client.records import job_of
from elastrain_dashboard import accelerators, facts, picture, timeline
from elastrain_dashboard.access import EVERYTHING, View
from elastrain_dashboard.facts import EventFacts, JobFacts, NodeFacts, PodFacts
from elastrain_dashboard.history import Figures, Shares
from elastrain_dashboard.stream import Hub
from elastrain_resource.job import ElasticTrainingJob, JobStatus
from elastrain_resource.reflector import RETRY_DELAYS, Reflector, Source

PERMISSIONS: Mapping[tuple[str, str], tuple[str, ...]] = MappingProxyType(
    {
        (names.GROUP, names.PLURAL): ("list", "watch"),
        ("", "pods"): ("list", "watch"),
        ("", "events"): ("list", "watch"),
    }
)
"""(API group, resource) -> verbs, in each shown namespace. A test compares the chart's Role with it."""
NODE_PERMISSIONS: Mapping[tuple[str, str], tuple[str, ...]] = MappingProxyType({("", "nodes"): ("list", "watch")})
"""The same for the whole cluster, if all namespaces are shown."""
OVERVIEW = ""
"""Topic of the job list; a job's topic is its key."""
ACCELERATOR_SECONDS = 30.0
"""Seconds between two publications of unchanged accelerators."""

Json = dict[str, Any]
T = TypeVar("T")
_NOTHING: Json = {"total": None, "jobs": [], "nodes": []}
"""An unused and absent resource."""


@dataclass(slots=True)
class Remembered:
    """The past of a job, since the start of this server."""

    uid: str
    figures: Figures = field(default_factory=Figures)
    moments: tuple[timeline.Moment, ...] = ()


class Board:
    """Use from one event loop."""

    def __init__(
        self,
        source: Source,
        namespaces: tuple[str, ...],
        started: datetime,
        *,
        retry_delays: tuple[float, ...] = RETRY_DELAYS,
    ) -> None:
        """``namespaces``: the shown namespaces; empty: all namespaces, and the cluster's nodes."""
        self.hub = Hub()
        self.namespaces = namespaces
        self._started = started
        self._rows: dict[str, Json] = {}
        self._parsed: dict[str, ElasticTrainingJob] = {}
        self._remembered: dict[str, Remembered] = {}
        self._pods_of: dict[str, dict[str, Worker]] = {}
        self._events_of: dict[str, dict[str, Event]] = {}
        self._dirty: set[str] = set()
        self._devices_changed = True
        self._devices_sent = float("-inf")
        self._devices: list[Json] = []
        self._shares: dict[str, tuple[Shares, Shares]] = {}
        self._problems: list[Json] | None = None
        self._listed = False  # and all rows are built
        self._subscribe(source, namespaces, retry_delays)

    def _subscribe(self, source: Source, namespaces: tuple[str, ...], retry_delays: tuple[float, ...]) -> None:
        """Create one reflector for each resource and namespace."""
        reflect = partial(Reflector, source, retry_delays=retry_delays)
        workers, about_jobs = {"labelSelector": names.LABEL_JOB}, {"fieldSelector": f"involvedObject.kind={names.KIND}"}
        api = f"/apis/{names.API_VERSION}"
        self._jobs: list[Reflector[JobFacts]] = [
            reflect(f"{api}{n}/{names.PLURAL}", f"jobs{of}", parse=facts.job, on_change=self._job_changed)
            for n, of in _places(namespaces)
        ]
        self._pods: list[Reflector[PodFacts]] = [
            reflect(f"/api/v1{n}/pods", f"pods{of}", workers, parse=facts.pod, on_change=self._pod_changed)
            for n, of in _places(namespaces)
        ]
        self._events: list[Reflector[EventFacts]] = [
            reflect(f"/api/v1{n}/events", f"events{of}", about_jobs, parse=facts.event, on_change=self._event_changed)
            for n, of in _places(namespaces)
        ]
        self._nodes: Reflector[NodeFacts] | None = None
        if not namespaces:
            self._nodes = reflect("/api/v1/nodes", "nodes", parse=facts.node, on_change=self._node_changed)

    @property
    def _reflectors(self) -> list[Reflector[Any]]:
        return [*self._jobs, *self._pods, *self._events, *([self._nodes] if self._nodes else [])]

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kept in self._reflectors:
                group.create_task(kept.run(), name=f"watch {kept.what}")

    # -- queries -------------------------------------------------------------------------------------------------------
    def used_namespaces(self) -> set[str]:
        """Namespaces with jobs."""
        return {key.partition("/")[0] for key in self._rows}

    def rows(self, view: View = EVERYTHING) -> list[Json]:
        """The jobs of a view, by namespace and name."""
        return [self._rows[key] for key in sorted(self._rows) if view.sees(key)]

    def job(self, key: str, *, figures: bool) -> Json | None:
        """A job's page; None: no such job. ``figures``: include its values over time."""
        job = self._parsed.get(key)
        shown = self._rows.get(key)
        if job is not None:
            workers = list(self._pods_of.get(key, {}).values())
            events = self._events_of.get(key, {}).values()
            shown = picture.detail(job, workers, events, self._remembered[key].moments)
        if shown is not None and figures:
            shown = {**shown, "figures": self._remembered[key].figures.shown()}
        return shown

    def devices(self, view: View = EVERYTHING) -> Json:
        """Accelerators, now and over time, as far as a view shows them."""
        history = {
            resource: {"byJob": by_job.shown(), "byNode": by_node.shown()}
            for resource, (by_job, by_node) in self._shares.items()
        }
        shown = {"resources": self._devices, "history": history, "nodesKnown": self._nodes_known}
        return accelerators.seen(shown, view)

    def health(self, now: datetime, view: View = EVERYTHING) -> Json:
        """Whether the shown data is current."""
        return {
            "now": now.isoformat(),
            "started": self._started.isoformat(),
            "namespaces": list(self.namespaces) if view.namespaces is None else sorted(view.namespaces) or ["none"],
            "listed": self._listed,
            "stale": any(kept.problem for kept in self._jobs),
            "problems": self._all_problems(),
        }

    # -- updates -------------------------------------------------------------------------------------------------------
    def tick(self, now: datetime) -> None:
        """Process the changes since the last call and publish them."""
        listed = all(kept.listed for kept in self._jobs)
        changed, gone = self._take_in(now.timestamp())
        self._take_in_devices(now.timestamp())
        if changed or gone:
            for view in self.hub.views(OVERVIEW):
                rows = [self._rows[key] for key in changed if view.sees(key)]
                left = [key for key in gone if view.sees(key)]
                if rows or left:
                    self.hub.send(OVERVIEW, view, "jobs", {"now": now.isoformat(), "rows": rows, "gone": left})
        for key in self.hub.topics:
            if key in gone:
                self._send_all(key, "gone", {"now": now.isoformat()})
            elif key in changed:
                self._send_all(key, "job", {"now": now.isoformat(), "job": self.job(key, figures=False)})
        problems = self._all_problems()
        if problems != self._problems or listed != self._listed:  # published last: the page already has the data
            self._problems, self._listed = problems, listed
            for topic in self.hub.topics:
                for view in self.hub.views(topic):
                    self.hub.send(topic, view, "health", self.health(now, view))

    def _send_all(self, topic: str, event: str, data: Json) -> None:
        for view in self.hub.views(topic):
            self.hub.send(topic, view, event, data)

    def _take_in(self, now: float) -> tuple[set[str], list[str]]:
        """Keys of changed jobs, and keys of deleted jobs."""
        dirty, self._dirty = self._dirty, set()
        jobs: Mapping[str, JobFacts] = ChainMap(*(kept.values for kept in self._jobs))
        gone = []
        for key in dirty:
            found = jobs.get(key)
            if found is not None:
                self._see(key, found, now)
            elif self._rows.pop(key, None) is not None:
                self._parsed.pop(key, None)
                self._remembered.pop(key, None)
                gone.append(key)
        return {key for key in dirty if key in self._rows}, gone  # pods and events may outlive their job

    def _see(self, key: str, found: JobFacts, now: float) -> None:
        remembered = self._remembered.get(key)
        if remembered is None or remembered.uid != found.uid:  # another job with the same name
            remembered = self._remembered[key] = Remembered(found.uid)
        try:
            job = job_of(found.body)
        except Refused as error:
            self._parsed.pop(key, None)
            self._rows[key] = picture.unreadable(found.body, str(error))
            return
        status = job.status or JobStatus()
        self._parsed[key], self._rows[key] = job, picture.row(job)
        remembered.moments = timeline.merged(
            remembered.moments, self._events_of.get(key, {}).values(), status.last_rescale
        )
        remembered.figures.add(
            now,
            step=status.step,
            loss=status.progress.loss if status.progress else None,
            ready=status.ready_replicas,
            desired=picture.desired(job),
        )

    def _take_in_devices(self, now: float) -> None:
        due = now - self._devices_sent >= ACCELERATOR_SECONDS
        if self._devices_changed:
            pods = [pod for kept in self._pods for pod in kept.values.values()]
            nodes = self._nodes.values.values() if self._nodes and self._nodes_known else None
            self._devices = accelerators.picture(pods, nodes)
        for resource in self._shares.keys() | {r["resource"] for r in self._devices}:
            shown = next((r for r in self._devices if r["resource"] == resource), _NOTHING)
            by_job, by_node = self._shares.setdefault(resource, (Shares(), Shares()))
            by_job.add(now, shown["total"], {j["key"]: j["count"] for j in shown["jobs"]})
            by_node.add(now, shown["total"], {n["name"]: n["held"] for n in shown["nodes"]})
        if self._devices_changed or due:
            self._devices_changed, self._devices_sent = False, now
            for view in self.hub.views(OVERVIEW):
                self.hub.send(OVERVIEW, view, "accelerators", self.devices(view))

    @property
    def _nodes_known(self) -> bool:
        return self._nodes is not None and self._nodes.listed

    def _all_problems(self) -> list[Json]:
        return [
            {"what": kept.what, "text": p.text, "since": p.since.isoformat(), "denied": p.denied}
            for kept in self._reflectors
            if (p := kept.problem)
        ]

    # -- callbacks of the reflectors -----------------------------------------------------------------------------------
    def _job_changed(self, key: str, _before: object, _after: object) -> None:
        self._dirty.add(key)

    def _pod_changed(self, key: str, before: PodFacts | None, after: PodFacts | None) -> None:
        self._devices_changed = True
        was = before.job if before else None
        self._file(self._pods_of, key, was, (after.job, after.worker) if after else None)

    def _event_changed(self, key: str, before: EventFacts | None, after: EventFacts | None) -> None:
        was = before.job if before else None
        self._file(self._events_of, key, was, (after.job, after.event) if after else None)

    def _node_changed(self, _key: str, before: NodeFacts | None, after: NodeFacts | None) -> None:
        self._devices_changed = True

    def _file(self, by_job: dict[str, dict[str, T]], key: str, was: str | None, now: tuple[str, T] | None) -> None:
        """Index a value by its job."""
        if was is not None:
            self._dirty.add(was)
            of_job = by_job.get(was, {})
            of_job.pop(key, None)
            if not of_job:
                by_job.pop(was, None)
        if now is not None:
            job, value = now
            self._dirty.add(job)
            by_job.setdefault(job, {})[key] = value


def _places(namespaces: tuple[str, ...]) -> list[tuple[str, str]]:
    """Path and description of each namespace; of the whole cluster if there is none."""
    return [(f"/namespaces/{n}", f" of namespace {n}") for n in namespaces] or [("", "")]
