"""The cluster's devices, their classes and what claims hold of them, kept current once a job's workers claim
devices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any

from elastrain_operator.allocation.resources import CLAIM
from elastrain_operator.allocation.snapshot import Snapshot
from elastrain_operator.cluster.nodes import DWELL
from elastrain_operator.devices import books, slices
from elastrain_operator.devices.books import Books, Published, Taken, Wants
from elastrain_operator.devices.selectors import NotCounted
from elastrain_operator.devices.slices import DeviceClass, Mild, Slice, Template
from elastrain_operator.waiting import until
from elastrain_resource.reflector import Reflector, Source

API = "/apis/resource.k8s.io/v1"


class Devices:
    """Four watches, which begin with the first claim that a job's template names, or the first extended resource that
    no node has: a cluster without such jobs pays nothing."""

    def __init__(self, source: Source, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._wanted = asyncio.Event()
        self._found: Published | None = None
        """Of the slices; None: they have changed since."""
        self._published: Published | None = None
        """The same, with its taints marked; None: not yet."""
        self._since: dict[Mild, datetime] = {}
        """When each mild taint was first observed."""
        self._lasting: frozenset[Mild] = frozenset()
        """Those of ``_published`` that have lasted."""

        def kept(plural: str, what: str, parse: Callable[..., Any], changed: Callable[..., None]) -> Reflector[Any]:
            return Reflector(source, f"{API}/{plural}", what, parse=parse, on_change=changed, on_problem=on_change)

        self._slices: Reflector[Slice] = kept("resourceslices", "resource slices", slices.slice_of, self._slice_changed)
        self._classes: Reflector[DeviceClass] = kept(
            "deviceclasses", "device classes", slices.device_class, self._changed
        )
        self._templates: Reflector[Template] = kept(
            "resourceclaimtemplates", "resource claim templates", slices.template, self._changed
        )
        self._claims: Reflector[Taken] = kept("resourceclaims", "resource claims", slices.taken, self._changed)
        self._all: tuple[Reflector[Any], ...] = (self._slices, self._classes, self._templates, self._claims)

    async def run(self) -> None:
        """Until cancelled."""
        await until(self._wanted, None)
        await asyncio.gather(*(kept.run() for kept in self._all))

    def problem(self, snapshot: Snapshot) -> str | None:
        """Why the devices that a snapshot asks for are not known yet; None: they are, or will not be."""
        if any(books.requested(snapshot)):
            self._wanted.set()
            if waits := [k for k in self._all if not k.listed and k.problem is None]:
                return f"the {waits[0].what} of the cluster are not listed yet"
        return None

    def resolve(self, snapshot: Snapshot, workers: Collection[str], now: datetime) -> Snapshot:
        """See :func:`elastrain_operator.devices.books.resolve`."""
        claims, unserved = books.requested(snapshot)
        classes = {c.name: c for c in self._classes.values.values()}
        served = {r: ask for r in unserved if (ask := slices.extended(r, classes)) is not None}
        if not (claims or served):
            return snapshot
        missing = next((k for k in self._all if not k.listed), None)
        known = {name.removeprefix(CLAIM): self._template(name.removeprefix(CLAIM)) for name in claims}
        wants: dict[str, Wants | NotCounted] = {name: slices.wants(found, classes) for name, found in known.items()}
        if missing is not None:
            unread = NotCounted(f"the {missing.what} cannot be read")
            wants, served = dict.fromkeys(wants, unread), dict.fromkeys(served, unread)
        found = Books(self._present(now), tuple(self._claims.values.values()), wants, served)
        return books.resolve(snapshot, found, workers)

    def next_change(self, now: datetime) -> float | None:
        """Seconds until time alone changes a device: a taint has then lasted; None: it does not."""
        ends = [at + DWELL for at in self._since.values() if at + DWELL > now]
        return (min(ends) - now).total_seconds() if ends else None

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _template(self, name: str) -> Template:
        return self._templates.values.get(name) or NotCounted("a template that does not exist")

    def _present(self, now: datetime) -> Published:
        """The devices now; taints that are too new to move workers are marked. Kept until one of both changes."""
        if self._found is None:  # once for all slices that have changed
            self._found = slices.published(self._slices.values.values())
            known = self._since
            self._since = {mild: known.get(mild, now) for d in self._found.devices for mild in slices.mild(d)}
            self._published = None
        lasting = frozenset(mild for mild, at in self._since.items() if now - at >= DWELL)
        if self._published is None or lasting != self._lasting:
            self._lasting = lasting
            self._published = slices.at_present(self._found, lasting)
        return self._published

    def _slice_changed(self, *_: object) -> None:
        self._found = None
        self._on_change()

    def _changed(self, *_: object) -> None:
        self._on_change()
