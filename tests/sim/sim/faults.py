"""What goes wrong, and when: a seed's choice. Each fault has an end, so that the world is whole again afterwards."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from sim import apiserver, etcd, skew
from sim.invariants import AFTERMATH
from sim.kubelet import NOT_READY_AFTER, Container, Node
from sim.process import Process

if TYPE_CHECKING:
    from sim.world import World

Undo = Callable[[], None] | None


class Faults:
    """Plans and causes them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.counts: Counter[str] = Counter()
        """How often each kind came about."""
        self._outage_ends = 0.0

    def plan(self, first: float, last: float) -> float:
        """From one to six faults between two times. Returns when the last one is over, which is by ``last``."""
        rng = self.world.rng
        kinds = sorted(KINDS)
        chosen = rng.sample(kinds, rng.randint(1, 4))  # a run has few kinds, and more of each
        over = first
        for _ in range(rng.randint(1, 6)):
            when = rng.uniform(first, last)
            lasts = min(rng.choice((0.3, 2.0, 7.0, 25.0)) * rng.uniform(0.5, 1.5), last - when)
            self.world.clock.at(when, self._cause, rng.choice(chosen), lasts)
            over = max(over, when + lasts)
        return max(over, self._plan_beside(first, last))

    def _plan_beside(self, first: float, last: float) -> float:
        """Faults of a cluster that others share, or an old snapshot of etcd, beside the others. Only in some schedules,
        and by randomness of their own: the other seeds keep their faults."""
        rng, over, remainder = Random(self.world.seed), first, self.world.seed % 8
        chosen = rng.sample(sorted(NEIGHBOURS), 2) if remainder in NEIGHBOURS_OF else ()
        for kind in RESTORE if remainder in RESTORED else chosen:
            when = rng.uniform(first, last)
            lasts = min(rng.choice((2.0, 7.0, 25.0)) * rng.uniform(0.5, 1.5), last - when)
            self.world.clock.at(when, self._cause, kind, lasts)
            over = max(over, when + lasts)
        return over

    def _cause(self, kind: str, seconds: float) -> None:
        undo = (KINDS | NEIGHBOURS | RESTORE)[kind](self.world)
        if undo is False:
            return
        self.counts[kind] += 1
        self._note_harm(kind, self.world.clock.now + (seconds if undo else 0.0))
        self.world.note("FAULT", kind, f"for {seconds:.1f} s" if undo else "")
        if callable(undo):
            self.world.clock.after(seconds, self._end, kind, undo)

    def _note_harm(self, kind: str, until: float) -> None:
        """What happens to workers during an outage, or just before it, may show after it only."""
        ledger = self.world.ledger
        if kind not in OUTAGES | NEIGHBOURS.keys():
            ledger.harm_ends = max(ledger.harm_ends, until, self._outage_ends)
        elif self.world.clock.now < ledger.harm_ends + AFTERMATH:
            ledger.harm_ends = max(ledger.harm_ends, until)
        self._outage_ends = max(self._outage_ends, until) if kind in OUTAGES | NEIGHBOURS.keys() else self._outage_ends

    def _end(self, kind: str, undo: Callable[[], None]) -> None:
        self.world.note("FAULT ends", kind)
        undo()


def _container(world: World) -> Container | None:
    running = [c for n in world.nodes.values() for c in n.containers.values() if c.agent is not None and not c.over]
    return world.rng.choice(running) if running else None


def _live_node(world: World) -> Node | None:
    live = [n for n in world.nodes.values() if n.name not in world.dead and not n.kubelet.stopped]
    return world.rng.choice(live) if len(live) > 1 else None


def kill_rank(world: World) -> object:
    container = _container(world)
    ranks = [r for r in container.agent.ranks.values() if r.process.alive] if container and container.agent else []
    if not ranks or container is None or container.agent is None:
        return False
    world.ledger.killed(container.agent)
    world.rng.choice(ranks).killed(signal.SIGKILL)
    return None


def kill_worker(world: World) -> object:
    container = _container(world)
    if container is None:
        return False
    container.kill()
    return None


def delete_pod(world: World) -> object:
    """As ``kubectl drain`` does."""
    container = _container(world)
    if container is None or not world.api.up:
        return False
    world.ledger.taken_away(container.pod)
    world.api.delete("pods", container.name, container.uid)
    return None


def lose_node(world: World) -> object:
    node = _live_node(world)
    if node is None:
        return False
    node.die()
    return node.reboot


def _freeze(processes: list[Process]) -> Callable[[], None]:
    for process in processes:
        process.stop()

    def thaw() -> None:
        for process in processes:
            process.go_on()

    return thaw


def freeze_agent(world: World) -> object:
    """It alone: its ranks go on."""
    container = _container(world)
    if container is None or container.agent is None:
        return False
    return _freeze([container.process])


def freeze_worker(world: World) -> object:
    container = _container(world)
    if container is None or container.agent is None:
        return False
    return _freeze([container.process, *(r.process for r in container.agent.ranks.values())])


def freeze_rank(world: World) -> object:
    container = _container(world)
    if container is None or container.agent is None or not container.agent.ranks:
        return False
    return _freeze([world.rng.choice(list(container.agent.ranks.values())).process])


def freeze_node(world: World) -> object:
    node = _live_node(world)
    if node is None:
        return False
    world.clock.after(NOT_READY_AFTER, world.node_silent, node.name, node.kubelet)
    thaw = _freeze(node.processes())

    def go_on() -> None:
        thaw()
        if node.kubelet.alive:
            node.is_heard()

    return go_on


def freeze_operator(world: World) -> object:
    return _freeze([world.rng.choice(world.operators).process])


def freeze_operator_in_a_write(world: World) -> object:
    """Between the check whether it leads and the write; long enough for another one to lead then."""
    leads = [o for o in world.operators if o.leads and o.process.runs]
    body = world.body
    if not leads or len(world.operators) < 2 or body is None:
        return False
    leads[0].loop.stall = world.rng.uniform(18.0, 25.0)
    world.change_spec(replicas=world.rng.randint(body["spec"]["minReplicas"], body["spec"]["maxReplicas"]))
    return None


def kill_operator(world: World) -> object:
    operator = world.rng.choice(world.operators)
    if not operator.process.alive:
        return False
    operator.kill(world.rng.uniform(0.5, 8.0))
    return None


def _cut(world: World, a: str, b: str) -> Callable[[], None]:
    world.network.cut(a, b)
    return lambda: world.network.heal(a, b)


def cut_agent_from_etcd(world: World) -> object:
    return _cut(world, world.rng.choice(sorted(world.nodes)), etcd.PLACE)


def cut_operator_from_etcd(world: World) -> object:
    return _cut(world, world.rng.choice(world.operators).place, etcd.PLACE)


def cut_operator_from_api(world: World) -> object:
    return _cut(world, world.rng.choice(world.operators).place, apiserver.PLACE)


def cut_kubelet_from_api(world: World) -> object:
    return _cut(world, world.rng.choice(sorted(world.nodes)), apiserver.PLACE)


def restart_etcd(world: World) -> object:
    if not world.etcd.up:
        return False
    world.etcd.crash()
    return world.etcd.start


def wipe_etcd(world: World) -> object:
    """It comes back without its data."""
    if not world.etcd.up or world.etcd.lost:
        return False
    world.etcd.crash(lose=True)
    return world.etcd.start


def restore_an_old_snapshot(world: World) -> object:
    """etcd comes back with the data that it had when the fault began."""
    if not world.etcd.up or world.etcd.lost:
        return False
    snapshot = world.etcd.snapshot()

    def restore() -> None:
        if world.etcd.up and not world.etcd.lost:
            world.etcd.crash(restore=snapshot)
            world.etcd.start()

    return restore


def compact_etcd(world: World) -> object:
    world.etcd.compact()
    return None


def lose_lease(world: World) -> object:
    """etcd drops a member's lease though the member lives."""
    leases = sorted(kv.lease for key, kv in world.etcd.kvs.items() if key.startswith(world.job.members))
    if not leases or not world.etcd.up:
        return False
    world.etcd.lose_lease(world.rng.choice(leases))
    return None


def restart_api(world: World) -> object:
    if not world.api.up:
        return False
    world.api.crash()

    def start() -> None:
        world.api.up = True

    return start


def forget_watches(world: World) -> object:
    world.api.forget_history()
    return None


def stale_caches(world: World) -> object:
    world.stale = 5.0

    def fresh() -> None:
        world.stale = 0.0

    return fresh


def slow_network(world: World) -> object:
    world.network.slow = 20.0

    def fast() -> None:
        world.network.slow = 1.0

    return fast


def scale(world: World) -> object:
    body = world.body
    if body is None:
        return False
    world.change_spec(replicas=world.rng.randint(body["spec"]["minReplicas"], body["spec"]["maxReplicas"]))
    return None


def suspend(world: World) -> object:
    world.change_spec(suspend=True)
    return lambda: world.change_spec(suspend=False)


# ---- a cluster that others share -------------------------------------------------------------------------------------
def refuse_pods(world: World) -> object:
    """Pod Security refuses each new pod of the job."""
    world.api.refuses_pods = True

    def admit() -> None:
        world.api.refuses_pods = False

    return admit


def forbid_all_calls(world: World) -> object:
    """A role binding is replaced: 403 to all calls but those of leases."""
    world.api.forbids = True

    def allow() -> None:
        world.api.forbids = False

    return allow


def _close(world: World, nodes: set[str]) -> object:
    node = world.rng.choice(sorted(world.nodes))
    if node in nodes:
        return False
    nodes.add(node)
    world.nodes_changed()

    def open_again() -> None:
        nodes.discard(node)
        world.nodes_changed()

    return open_again


def press_a_node(world: World) -> object:
    """Its memory is short: Kubernetes taints it, and leaves its pods alone."""
    return _close(world, world.pressed)


def cordon_a_node(world: World) -> object:
    """For seconds, and without a drain."""
    return _close(world, world.cordoned)


NEIGHBOURS: dict[str, Callable[[World], object]] = {
    f.__name__.replace("_", " "): f for f in (refuse_pods, forbid_all_calls, press_a_node, cordon_a_node)
} | skew.KINDS
"""Kinds that touch no worker, either."""
NEIGHBOURS_OF = frozenset({0, 5})
"""Remainders of the seeds (modulo 8) that have them; no seed that has failed once is among them."""
RESTORE: dict[str, Callable[[World], object]] = {"restore an old snapshot": restore_an_old_snapshot}
RESTORED = frozenset({6})
"""Remainders of the seeds (modulo 8) in which that happens."""
OUTAGES = frozenset(
    f.__name__.replace("_", " ")
    for f in (
        freeze_operator, freeze_operator_in_a_write, kill_operator, cut_operator_from_etcd,
        cut_operator_from_api, cut_kubelet_from_api,
        restart_etcd, wipe_etcd, compact_etcd, restart_api, forget_watches, stale_caches, scale, suspend,
        restore_an_old_snapshot,
    )
)  # fmt: skip
"""Kinds that touch no worker: a healthy generation goes on, whatever they last."""
KINDS: dict[str, Callable[[World], object]] = {
    f.__name__.replace("_", " "): f
    for f in (
        kill_rank, kill_worker, delete_pod, lose_node, freeze_agent, freeze_worker, freeze_rank, freeze_node,
        freeze_operator, freeze_operator_in_a_write, kill_operator, cut_agent_from_etcd,
        cut_operator_from_etcd, cut_operator_from_api,
        cut_kubelet_from_api, restart_etcd, wipe_etcd, compact_etcd, lose_lease, restart_api, forget_watches,
        stale_caches, slow_network, scale, suspend,
    )
}  # fmt: skip
