"""One run: so many members form a generation, rest, grow by one, lose one, lose their leader, lose a tenth."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from bench_harness.program import Failed
from bench_rendezvous.link import Link
from bench_rendezvous.member import SimulatedMember
from bench_rendezvous.meter import Reading
from bench_rendezvous.report import Cost, LeaseTraffic, Run
from elastrain.api.keys import JobKeys
from elastrain.api.records import Generation, Target
from elastrain.etcd.server import EtcdServer

PER_LINK = 64
"""Members that share a connection. etcd queues 128 events for a stream of watches and delivers the rest in later
rounds, so that more members would hear of a generation in turns."""
AT_ONCE = 128
"""Members that register at the same time: more would only queue up in the one client process."""
REST_SECONDS = 5.0


class Scenario:
    def __init__(self, server: EtcdServer, ttl: int, limit: float, per_link: int = PER_LINK) -> None:
        """Times are seconds; ``per_link``: members that share a connection."""
        self._per_link = per_link
        self._server = server
        self._ttl = ttl
        self._limit = limit
        self._keys = JobKeys("bench", "job", uuid.uuid4().hex)
        self._members: list[SimulatedMember] = []
        self._links: list[Link] = []
        self._knowing: Counter[int] = Counter()
        self._sizes: dict[int, int] = {}
        self._newest = 0
        self._progress = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._errors: list[BaseException] = []
        self._renewals = 0
        self._happening: asyncio.Future[None] | None = None

    async def run(self, size: int) -> Run:
        """Raises ``Failed``, and whatever etcd said if it failed."""
        self._links = [await Link.open(self._server.endpoint) for _ in range(-(-size // self._per_link))]
        for link in self._links:
            link.expired = self._expired
        renewing = asyncio.create_task(self._renew())
        try:
            costs = {"form": await self._measure(lambda: self._form(size), size)}
            lease = await self._rest(size)
            costs["grow"] = await self._measure(lambda: self._grow(size + 1), size + 1)
            costs["lose"] = await self._measure(lambda: self._lose([self._members[size // 2]]), size)
            leader = [m for m in self._members if m.leads]
            costs["lose leader"] = await self._measure(lambda: self._lose(leader), size - 1)
            some = max(1, size // 10)
            tenth = [m for m in self._members if not m.leads][: some * 9 : 9]
            costs["lose 10 %"] = await self._measure(lambda: self._lose(tenth), size - 1 - len(tenth))
            return Run(members=size, costs=costs, lease=lease)
        finally:
            tasks = [*self._tasks, renewing, *([self._happening] if self._happening else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for link in self._links:
                link.close()

    # ---- what happens ----------------------------------------------------------------------------------------------
    async def _form(self, size: int) -> None:
        await self._wanted(size, least=size)
        gate = asyncio.Semaphore(AT_ONCE)

        async def start(member: SimulatedMember) -> None:
            async with gate:
                await member.start(self._ttl)

        self._members = [self._member(i) for i in range(size)]
        await asyncio.gather(*(start(m) for m in self._members))

    async def _grow(self, size: int) -> None:
        await self._wanted(size)
        self._members.append(self._member(size - 1))
        await self._members[-1].start(self._ttl)

    async def _lose(self, lost: list[SimulatedMember]) -> None:
        """Their keys vanish, and the collectives of all others break."""
        gone = set(lost)
        self._members = [m for m in self._members if m not in gone]
        broken = self._newest
        deaths = [asyncio.create_task(m.die()) for m in lost]
        for i, member in enumerate(self._members):
            member.breaks(broken)
            if i % 64 == 0:
                await asyncio.sleep(0)  # real members break at the same time
        await asyncio.gather(*deaths)

    async def _wanted(self, size: int, least: int = 1) -> None:
        target = Target(min=least, max=size, desired=size)
        await self._links[0].put(self._keys.target, target.encode())

    def _member(self, index: int) -> SimulatedMember:
        link = self._links[index % len(self._links)]
        return SimulatedMember(link, self._keys, f"job-{index:04d}", self._spawn, self._knows)

    # ---- what it costs ---------------------------------------------------------------------------------------------
    async def _measure(self, happen: Callable[[], Awaitable[None]], size: int) -> Cost:
        before, events, first = await self._read(), self._events(), self._newest
        began = time.monotonic()
        happening = asyncio.ensure_future(happen())
        self._happening = happening  # kept for the end of a run that fails
        await self._until(lambda: self._sizes.get(self._newest) == size and self._knowing[self._newest] == size)
        seconds = time.monotonic() - began
        await happening
        number = self._newest
        for i, member in enumerate(self._members):
            member.adopts(number)
            if i % 64 == 0:
                await asyncio.sleep(0)
        await self._until(lambda: any(m.leads and m.view.adopted for m in self._members))
        after = await self._read()
        return Cost(
            seconds=round(seconds, 3),
            writes=after.since("writes", before),
            sent_bytes=after.since("sent_bytes", before),
            received_bytes=after.since("received_bytes", before),
            events=self._events() - events,
            generations=number - first,
            etcd_cpu=round(after.etcd_cpu - before.etcd_cpu, 2),
            client_cpu=round(after.client_cpu - before.client_cpu, 2),
        )

    async def _rest(self, size: int) -> LeaseTraffic:
        await asyncio.sleep(self._ttl / 3)  # until all take part in the round of renewals
        before, renewals = await self._read(), self._renewals
        await asyncio.sleep(max(REST_SECONDS, self._ttl / 3))
        after = await self._read()
        each = size * (after.at - before.at)
        return LeaseTraffic(
            ttl=self._ttl,
            renewals=round((self._renewals - renewals) / each, 3),
            bytes=round((after.since("sent_bytes", before) + after.since("received_bytes", before)) / each, 1),
            etcd_cpu=round((after.etcd_cpu - before.etcd_cpu) / (after.at - before.at), 4),
        )

    async def _read(self) -> Reading:
        assert self._server.pid is not None
        return await asyncio.to_thread(Reading.take, self._server.endpoint, self._server.pid)

    def _events(self) -> int:
        return sum(link.events for link in self._links)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Bounded; whatever failed meanwhile is raised."""
        deadline = time.monotonic() + self._limit
        while not condition():
            errors = self._errors + [link.failed for link in self._links if link.failed is not None]
            if errors:
                raise errors[0]
            left = deadline - time.monotonic()
            if left <= 0:
                known = self._knowing[self._newest]
                raise Failed(f"after {self._limit:g} s {known} members knew generation {self._newest}")
            self._progress.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._progress.wait(), min(left, 0.1))

    # ---- inside ----------------------------------------------------------------------------------------------------
    def _knows(self, generation: Generation) -> None:
        number = generation.number
        self._knowing[number] += 1
        self._sizes[number] = generation.size
        self._newest = max(self._newest, number)
        if self._knowing[number] == generation.size:
            self._progress.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._errors.append(error)

    def _expired(self, lease: int) -> None:
        if any(m.lease == lease for m in self._members):
            self._errors.append(Failed("a lease ran out: this machine is too slow for the TTL, give a longer one"))

    async def _renew(self) -> None:
        """Every lease, three times in its TTL, evenly spread."""
        while True:
            began = time.monotonic()
            living = [m for m in self._members if m.lease]
            if not living:
                await asyncio.sleep(0.05)
                continue
            for i, member in enumerate(living):
                if member.alive:
                    member.link.renew(member.lease)
                    self._renewals += 1
                ahead = began + (i + 1) / len(living) * self._ttl / 3 - time.monotonic()
                if ahead > 0.01:
                    await asyncio.sleep(ahead)
            await asyncio.sleep(max(0.01, began + self._ttl / 3 - time.monotonic()))
