"""What must hold in every schedule: the promises of docs/promises.md, and that nothing wedges or leaks.

The ledger takes notes of what happens; after every event the promises are held against what is new in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elastrain.agent.core.events import StartRanks
from elastrain.api.records import Generation, Target
from elastrain.etcd import KeyValue
from sim.ranks import ORDER, digest

if TYPE_CHECKING:
    from sim.agent import Agent
    from sim.apiserver import Body
    from sim.comm import Comm
    from sim.ranks import Rank
    from sim.world import World

PROMISES = {
    1: "No pod of a survivor is restarted or replaced by a rescale; no rank's pid changes in a planned one",
    2: "Every sample of an epoch is consumed exactly once, whatever joins, leaves or dies",
    3: "The global batch is exact at every world size, also when it does not divide",
    4: "The loss curve under any rescale history equals the fixed-size run",
    5: "A committed step is never redone or lost while a replica lives",
    6: "Two generations never train at once",
    7: "An outage of operator, API server or etcd never stops a healthy generation",
    8: "Every wait has a bound and says what it waits for",
    17: "No pod of the operator is ever the cause of another job's minimum being evicted",
}


RECLAIM = 5.0
"""Seconds after which a leader that runs has claimed the fence of an etcd that came back with old data."""


AFTERMATH = 10.0
"""Seconds after a fault in which it may still show."""


DRAIN_SECONDS = 19.0
"""Seconds that a worker has to leave, of the job and the operator that are simulated."""


class Violation(Exception):
    """A promise was broken. The message quotes it."""

    def __init__(self, promise: int, what: str) -> None:
        super().__init__(f"promise {promise} is broken ({PROMISES[promise]}): {what}")


class Wedge(Exception):
    """Faults have stopped long ago, and a job neither trains nor says why it cannot."""


@dataclass
class Sum:
    """One sum of gradients whose step was committed."""

    generation: int
    steps: tuple[int, ...]
    """The step that each rank computed."""
    samples: tuple[tuple[int, ...], ...]
    states: tuple[int, ...]
    living: int
    """Greatest step that a living replica outside of this generation held; of groups, that living ranks outside of it
    held all parts of."""


@dataclass
class Ledger:
    world: World
    sums: list[Sum] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    known: list[int] = field(default_factory=list)
    """For each of them the greatest number that a living member had heard of before."""
    commits: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    """Process, generation, step, state, ranks that took part of how many."""
    deletions: list[Body] = field(default_factory=list)
    starts: list[tuple[str, int, bool]] = field(default_factory=list)
    leaving: dict[str, float] = field(default_factory=dict)
    """Workers that were asked to leave, and when first."""
    last_commit: float = 0.0
    news: int = 0
    statuses: list[Body] = field(default_factory=list)
    stale_writes: list[str] = field(default_factory=list)
    """Operators that wrote after another one had claimed the fence."""
    reused: list[str] = field(default_factory=list)
    """Names that were given to a second pod."""
    harm_ends: float = 0.0
    """Until when a fault that touches workers lasts, or has lasted."""
    entered: set[int] = field(default_factory=set)
    """Numbers of generations that a rank has entered."""
    breaks: list[tuple[Generation, float]] = field(default_factory=list)
    """Generations that replace a broken one, and the seconds since workers were harmed."""
    _formed: dict[int, int] = field(default_factory=dict)
    """Revisions at which generations were formed, by number."""
    _formed_at: float = 0.0
    _claimed_by: str = ""
    _claimed_at: float = 0.0
    _names: set[str] = field(default_factory=set)
    _terminating: set[str] = field(default_factory=set)
    _taken_away: set[str] = field(default_factory=set)
    _killed: set[str] = field(default_factory=set)
    _counted: dict[Comm, dict[int, Any]] = field(default_factory=dict)
    """The last sum of each generation of which a rank has committed the step."""

    # ---- notes -------------------------------------------------------------------------------------------------------
    def formed(self, kv: KeyValue) -> None:
        generation = Generation.decode(kv.value)
        if generation in self.generations:
            self.world.note("generation restored", generation.number)
            return
        self.world.note("generation", generation.number, generation.reason, *(m.worker for m in generation.members))
        self.generations.append(generation)
        self._formed[generation.number] = kv.mod_revision
        agents = (a for a in self.world.agents if a.process.runs)
        self.known.append(max((a.member.view.highest for a in agents), default=0))
        if generation.reason in ("Lost", "Broken"):
            self._note_break(generation)
        self._formed_at = self.world.clock.now
        self.news += 1

    def _note_break(self, generation: Generation) -> None:
        """One that was formed after the last harm, and not by one member alone, has broken without a reason."""
        replaced = self.generations[-2] if len(self.generations) > 1 else None
        if replaced is None or replaced.number not in self.entered:
            return  # it never trained: its members were harmed before
        alone = replaced.size == 1  # it stops at its TTL: nobody could tell it of another one
        if not alone and self.harm_ends + AFTERMATH < self._formed_at:
            self.breaks.append((generation, self.world.clock.now - self.harm_ends))

    def target(self, kv: KeyValue) -> None:
        target = Target.decode(kv.value)
        self.world.note("target", target.desired, target.reason, *target.leaving)
        for worker in target.leaving:
            self.leaving.setdefault(worker, self.world.clock.now)

    def _summed(self, comm: Comm, given: dict[int, Any]) -> None:
        parts = [given[n] for n in sorted(given)]
        self.sums.append(
            Sum(
                comm.generation.number,
                tuple(step for _, _, step, _ in parts),
                tuple(samples for _, samples, _, _ in parts),
                tuple(state for *_, state in parts),
                self._living(comm),
            )
        )

    def _living(self, comm: Comm) -> int:
        """The furthest replica that lives, is connected and is not part of the sum, nor waits for its own result."""
        inside = {id(r) for r in comm.members.values()}
        steps: dict[int, list[int]] = {place: [0] for place in range(self.world.group_size)}
        for r in self.world.ranks:
            lives = r.process.alive and r.has_state and id(r) not in inside
            if lives and self._was_member(r, comm.generation.number):
                steps[r.agent.own.place].append(r.step)
        return min(max(of_place) for of_place in steps.values())

    def _was_member(self, rank: Rank, number: int) -> bool:
        """Whether etcd showed the member when that generation was formed, and has done so since."""
        record = self.world.etcd.kvs.get(self.world.job.member(rank.member))
        known = record is not None and record.create_revision < self._formed.get(number, 0)
        return known and rank.agent.process.runs

    def committed(self, rank: Rank, comm: Comm, parts: dict[int, Any]) -> None:
        """A rank commits a step; the first one to do so makes its sum count."""
        if self._counted.get(comm) is not parts:
            self._counted[comm] = parts
            self._summed(comm, parts)
        self.commits.append((rank.process.name, comm.generation.number, rank.step, rank.state, comm.size - len(parts)))
        self.last_commit = self.world.clock.now
        self.news += 1

    def started(self, agent: Agent, effect: StartRanks) -> None:
        killed = agent.process.name in self._killed
        self._killed.discard(agent.process.name)
        self.starts.append((agent.process.name, effect.incarnation, killed))
        self.news += 1

    def killed(self, agent: Agent) -> None:
        """A fault killed a rank of this agent: it may start its ranks anew."""
        self._killed.add(agent.process.name)

    def operator_wrote(self, operator: str, fence: bool) -> None:
        """An operator's transaction was accepted; ``fence``: it was the claim."""
        if fence:
            self._claimed_by, self._claimed_at = operator, self.world.clock.now
        elif operator != self._claimed_by and not self._claim_was_undone(operator):
            self.stale_writes.append(operator)
            self.news += 1

    def _claim_was_undone(self, writer: str) -> bool:
        """Whether etcd has come back with an older leader's claim, and no other operator that leads has been able to
        claim the fence anew for long enough."""
        restored, now = self.world.etcd.restored, self.world.clock.now
        if restored is None or self._claimed_at >= restored:
            return False
        leaders = [o.process for o in self.world.operators if o.leads and o.process.runs and o.process.name != writer]
        return all(now < max(restored, process.resumed_at) + RECLAIM for process in leaders)

    def taken_away(self, pod: Body) -> None:
        """Not the operator, but a person or a controller deletes this pod."""
        self._taken_away.add(pod["metadata"]["uid"])

    def api_wrote(self, kind: str, event: str, body: Body) -> None:
        meta = body["metadata"]
        if kind == "jobs" and event == "MODIFIED":
            self.statuses.append(body)
            self.news += 1
        if kind == "pods" and event == "ADDED":
            if meta["name"] in self._names:
                self.reused.append(meta["name"])
                self.news += 1
            self._names.add(meta["name"])
        if kind != "pods" or not ("deletionTimestamp" in meta or event == "DELETED"):
            return
        if meta["uid"] not in self._terminating:
            self._terminating.add(meta["uid"])
            if meta["uid"] not in self._taken_away and self.world.body is not None:
                self.deletions.append(body)
                self.news += 1


class Invariants:
    """Held after every event with news, over what is new."""

    def __init__(self, world: World) -> None:
        self.world, self.ledger = world, world.ledger
        self._sums = self._commits = self._generations = self._deletions = self._starts = 0
        self._statuses = self._breaks = 0
        self._reference = [0]
        self._trained = 0
        self._checks: tuple[Callable[[], None], ...] = (
            self.survivors_are_left_alone, self.batches_are_exact, self.losses_equal_the_fixed_size_run,
            self.groups_are_whole, self.no_step_is_redone, self.one_generation_trains, self.outages_stop_nothing,
            self.waits_are_told, self.one_operator_writes, self.verdicts_are_true,
        )  # fmt: skip

    def check(self) -> None:
        for check in self._checks:
            check()
        ledger = self.ledger
        self._sums, self._commits, self._generations = len(ledger.sums), len(ledger.commits), len(ledger.generations)
        self._deletions, self._starts = len(ledger.deletions), len(ledger.starts)
        self._statuses, self._breaks = len(ledger.statuses), len(ledger.breaks)

    def survivors_are_left_alone(self) -> None:
        """Promise 1."""
        ledger = self.ledger
        for pod in ledger.deletions[self._deletions :]:
            name, status = pod["metadata"]["name"], pod.get("status", {})
            running = status.get("phase") == "Running"
            ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
            placed = any(m.worker == name for g in ledger.generations for m in g.members)
            if not running or not ready or not placed or self._job_is_over():
                continue
            if name not in ledger.leaving:
                raise Violation(1, f"the operator deletes {name}, which runs and was not asked to leave")
            since = self.world.clock.now - ledger.leaving[name]
            if since < DRAIN_SECONDS:
                raise Violation(1, f"the operator deletes {name}, which was asked to leave {since:.1f} s ago")
        for process, incarnation, killed in ledger.starts[self._starts :]:
            if incarnation > 1 and not killed:
                raise Violation(1, f"{process} restarts its ranks (the {incarnation}th time); none was killed")

    def _job_is_over(self) -> bool:
        body = self.world.body
        conditions = body.get("status", {}).get("conditions", ()) if body else ()
        return body is None or any(c["type"] in ("Succeeded", "Failed") and c["status"] == "True" for c in conditions)

    def batches_are_exact(self) -> None:
        """Promises 2 and 3."""
        for done in self.ledger.sums[self._sums :]:
            if len(set(done.steps)) != 1:
                raise Violation(2, f"generation {done.generation} sums gradients of different steps {done.steps}")
            samples = [i for part in done.samples for i in part]
            if samples != list(ORDER.batch(done.steps[0])):
                raise Violation(3, f"step {done.steps[0]} of generation {done.generation} is made of samples {samples}")
        for process, generation, step, _, missing in self.ledger.commits[self._commits :]:
            if missing:
                raise Violation(3, f"{process} commits step {step} of generation {generation} without {missing} ranks")

    def losses_equal_the_fixed_size_run(self) -> None:
        """Promise 4: the state after a step is the one that a run of one rank has."""
        for process, generation, step, state, _ in self.ledger.commits[self._commits :]:
            while len(self._reference) <= step:
                n = len(self._reference) - 1
                self._reference.append(digest(self._reference[-1], tuple(ORDER.batch(n))))
            if state != self._reference[step]:
                raise Violation(4, f"{process} has another state after step {step} in generation {generation}")

    def no_step_is_redone(self) -> None:
        """Promise 5."""
        for done in self.ledger.sums[self._sums :]:
            if done.living > done.steps[0] + 1:
                step = done.steps[0]
                raise Violation(5, f"generation {done.generation} computes step {step}, a replica has {done.living}")

    def groups_are_whole(self) -> None:
        """Promise 4: without a worker of a group, a part of the model would not be trained."""
        places = {agent.worker: agent.own.place for agent in self.ledger.world.agents}
        for generation in self.ledger.generations[self._generations :]:
            found = [places[m.worker] for m in generation.members]
            size = self.ledger.world.group_size
            if found != [*range(size)] * (len(found) // size):
                raise Violation(4, f"generation {generation.number} has workers with the places {found}")

    def one_generation_trains(self) -> None:
        """Promise 6: numbers only grow while a member remembers them, and once a generation has summed gradients no
        older one does."""
        for i in range(self._generations, len(self.ledger.generations)):
            number, before = self.ledger.generations[i].number, self.ledger.known[i]
            if number <= before:
                raise Violation(6, f"generation {number} is formed after {before}")
            if not before:
                self._trained = 0
        for done in self.ledger.sums[self._sums :]:
            if done.generation < self._trained:
                raise Violation(6, f"generation {done.generation} trains after generation {self._trained} did")
            self._trained = done.generation

    def outages_stop_nothing(self) -> None:
        """Promise 7: where no worker was harmed lately, no generation breaks."""
        for generation, seconds in self.ledger.breaks[self._breaks :]:
            raise Violation(
                7, f"generation {generation.number} ({generation.reason}: {generation.why}) replaces one whose workers "
                f"were not harmed for {seconds:.0f} s"
            )  # fmt: skip

    def waits_are_told(self) -> None:
        """Promise 8: a status that does not say "Running" says what is waited for."""
        for body in self.ledger.statuses[self._statuses :]:
            status = body.get("status", {})
            words = [c for c in status.get("conditions", ()) if c.get("message")]
            if status and status.get("phase") in ("Pending", "Rescaling") and not words:
                raise Violation(8, f"the phase is {status['phase']}, and no condition says why")

    def one_operator_writes(self) -> None:
        if self.ledger.stale_writes:
            raise Violation(6, f"{self.ledger.stale_writes[0]} writes to etcd after another operator claimed the fence")
        if self.ledger.reused:
            raise Violation(1, f"an ordinal never names two pods: {self.ledger.reused[0]} is created again")

    def verdicts_are_true(self) -> None:
        """No script fails here, and a job has succeeded only if it has made all its steps."""
        for body in self.ledger.statuses[self._statuses :]:
            for told in body.get("status", {}).get("conditions", ()):
                if told["type"] == "Failed" and told["status"] == "True":
                    raise Violation(7, f"the job has failed: {told['reason']}: {told['message']}")
                made = max((step for _, _, step, _, _ in self.ledger.commits), default=0) + 1
                if told["type"] == "Succeeded" and told["status"] == "True" and made < self.world.total_steps:
                    raise Violation(2, f"the job has succeeded after {made} of {self.world.total_steps} steps")

    # ---- in the end --------------------------------------------------------------------------------------------------
    def trains_or_says_why(self, since: float) -> None:
        """After a quiet time: all wanted workers train, or the status tells why not."""
        world = self.world
        body = world.body
        if body is None or self._job_is_over():
            return
        status, spec = body.get("status", {}), body["spec"]
        desired = 0 if spec.get("suspend") else spec.get("replicas", spec["maxReplicas"])
        if world.room:  # the allocator decides, and the status says what
            desired = min(desired, status.get("desiredReplicas", 0))
            if not desired and not spec.get("suspend") and any(c.get("message") for c in status["conditions"]):
                return
        pods = world.api.objects["pods"].values()
        live = [p for p in pods if p.get("status", {}).get("phase") not in ("Failed", "Succeeded")]
        desired *= world.group_size
        if len(live) != desired:
            names = [p["metadata"]["name"] for p in live]
            raise Wedge(f"no leaked pod, none missing: {len(live)} pods exist ({names}), {desired} are wanted")
        if not desired:
            if status.get("phase") != "Suspended":
                raise Wedge(f"a suspended job says so: its phase is {status.get('phase')}")
            return
        newest = self.ledger.generations[-1] if self.ledger.generations else None
        if newest is None or newest.size != desired:
            names = [m.worker for m in newest.members] if newest else None
            raise Wedge(f"all {desired} workers are in the generation: it is {names}")
        if self.ledger.last_commit < since and world.total_steps > 10**5:
            raise Wedge(f"the job trains: its last step was committed at {self.ledger.last_commit:.1f}")
        if status.get("phase") != "Running":
            raise Wedge(f"the status says that it trains: its phase is {status.get('phase')}")

    def nothing_is_left(self, _since: float) -> None:
        """After the job was deleted."""
        world = self.world
        if world.api.objects["pods"]:
            raise Wedge(f"no leaked pod: {sorted(world.api.objects['pods'])} outlive their job")
        left = [key for key in sorted(world.etcd.kvs) if key.startswith(world.job.prefix)]
        if left and not world.etcd.lost:  # the record that says whose they are may be lost, too
            raise Wedge(f"no leaked record: {left} outlive their job")


__all__ = ["Invariants", "Ledger", "Violation", "Wedge"]
