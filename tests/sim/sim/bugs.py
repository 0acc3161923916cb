"""Bugs made by hand, to see that the simulation finds them: each replaces one decision of the product, or of the ranks'
commit rule, by a wrong one. ``python -m sim --bug NAME`` runs with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.api.pages.vouch import Vouch
from elastrain.elastic.commit.control import Summed
from elastrain.elastic.group import entry
from elastrain.etcd import Transaction
from elastrain.rendezvous import decide, groups, protocol
from elastrain.rendezvous.view import View
from elastrain_operator.facts import Deletion
from elastrain_operator.leader import fencing
from elastrain_operator.policy import ending
from elastrain_operator.policy.size import leavers, replicas
from elastrain_operator.watch import owner as owners
from elastrain_operator.watch import pods
from sim.comm import Comm
from sim.etcd import Etcd


def a_leader_writes_without_comparing() -> Any:
    honest = protocol.MemberProtocol._proposal

    def proposal(self: protocol.MemberProtocol, view: View, action: decide.Propose) -> Transaction:
        return replace(honest(self, view, action), unchanged=())

    return mock.patch.object(protocol.MemberProtocol, "_proposal", proposal)


def a_step_is_committed_without_all_ranks() -> Any:
    return mock.patch.object(Comm, "_is_complete", lambda self, c: len(c.given) >= max(1, self.size - 1))


def leaving_is_ignored() -> Any:
    return mock.patch.object(View, "is_leaving", lambda self, member: False)


def leases_do_not_expire() -> Any:
    return mock.patch.object(Etcd, "_expire", lambda self, number: None)


def a_worker_is_deleted_before_its_drain() -> Any:
    return mock.patch.object(leavers, "released", lambda pod, *_: Deletion(pod.name, pod.uid, "now"))


def a_worker_is_deleted_unasked() -> Any:
    honest = ending.ended_deletions

    def ended(pods: Any, counted: Any, now: Any) -> Any:
        extra = [ending._deletion(p, "spare") for p in pods if p.started and p.ordinal % 3 == 2]
        return (*honest(pods, counted, now), *extra)

    return mock.patch.object(ending, "ended_deletions", ended)


def half_a_group_trains() -> Any:
    def of(inside: Any, others: Any = ()) -> list[groups.Group]:
        found: dict[Any, dict[int, Any]] = {}
        for m in (*inside, *others):
            found.setdefault(groups._key(m), {})[m.record.place] = m
        return [tuple(g[place] for place in sorted(g)) for g in found.values()]

    return mock.patch.object(groups, "of", of)


def ordinals_are_used_again() -> Any:
    def ordinals(missing: int, open_ordinals: Any, pods: Any, *_: Any) -> tuple[int, ...]:
        taken = {p.ordinal for p in pods}
        return tuple(n for n in range(100) if n not in taken)[:missing]

    return mock.patch.object(replicas, "ordinals", ordinals)


def joiners_are_never_admitted() -> Any:
    honest = View.joiners.func

    return mock.patch.object(View, "joiners", property(lambda self: () if self.base_alive else honest(self)))


def ended_generations_are_never_told() -> Any:
    return mock.patch.object(View, "condemned", property(lambda self: {}))


def ranks_commit_without_their_agents_vouch() -> Any:
    return mock.patch.object(Vouch, "covers", lambda self, generation, members, now: True)


def a_reset_outweighs_a_lease() -> Any:
    """As it was: members that are silent as a generation breaks count as dead, the leader too."""
    look, candidate = protocol.MemberProtocol.look, protocol.MemberProtocol._candidate

    def silent(view: View) -> frozenset[str]:
        if view.generation is None or not view.broken:
            return frozenset()
        number = view.generation.number
        ids = (m.id for m in view.base_alive if m.record.broken < number and m.id != view.self_id)
        return frozenset(ids)

    def looks(self: Any, own: Any, now: float) -> View:
        view = look(self, own, now)
        dead = silent(view)
        left = tuple(m for m in view.members if m.id not in dead)
        self.view = replace(view, members=left, leader=None if view.leader in dead else view.leader)
        return self.view

    def claims(self: Any, view: View, own: Any, lease: int, now: float) -> Any:
        found = candidate(self, view, own, lease, now)
        return replace(found, leader=None, since=None) if view.leader is None else found

    kind = protocol.MemberProtocol
    return both(mock.patch.object(kind, "look", looks), mock.patch.object(kind, "_candidate", claims))


def ranks_switch_without_a_vote() -> Any:
    return mock.patch.object(
        Summed, "agreed", lambda self, current: max((n for n in self.connected if n > current), default=None)
    )


def the_state_of_the_first_rank_wins() -> Any:
    return mock.patch.object(entry, "_sources", lambda table: [0])


def an_operator_writes_without_its_fence() -> Any:
    honest = fencing.Transaction
    return mock.patch.object(fencing, "Transaction", lambda unchanged, puts: honest((), puts))


def an_ended_generation_passes_for_whole() -> Any:
    """As it was until the simulation found it."""
    return mock.patch.object(
        View, "broken",
        property(lambda v: any(m.record.broken >= (v.generation.number if v.generation else 0) for m in v.base_alive)),
    )  # fmt: skip


def pods_are_attributed_by_their_labels() -> Any:
    """As it was."""

    def owner(body: Any) -> JobKeys | None:
        labels = body["metadata"].get("labels", {})
        job, uid = labels.get(names.LABEL_JOB), labels.get(names.LABEL_JOB_UID)
        return JobKeys(body["metadata"]["namespace"], job, uid) if job and uid else None

    patched = {"owner": owner, "ordinal": lambda pod, job: int(pod.rpartition("-")[2])}
    return both(mock.patch.multiple(owners, **patched), mock.patch.object(pods, "owner", owner))


def a_removed_label_is_a_deletion() -> Any:
    """As it was."""
    return mock.patch.object(pods.WorkerPods, "_check", lambda self, seen: self._forget(seen.uid))


@contextmanager
def both(*patches: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


BUGS: dict[str, Callable[[], Any]] = {
    f.__name__: f
    for f in (
        a_leader_writes_without_comparing, a_step_is_committed_without_all_ranks, leaving_is_ignored,
        leases_do_not_expire, a_worker_is_deleted_before_its_drain, a_worker_is_deleted_unasked,
        half_a_group_trains, ordinals_are_used_again, joiners_are_never_admitted, ended_generations_are_never_told,
        a_reset_outweighs_a_lease, ranks_commit_without_their_agents_vouch, ranks_switch_without_a_vote,
        the_state_of_the_first_rank_wins,
        an_operator_writes_without_its_fence, an_ended_generation_passes_for_whole,
        pods_are_attributed_by_their_labels, a_removed_label_is_a_deletion,
    )
}  # fmt: skip


@contextmanager
def present(name: str) -> Iterator[None]:
    """While this lasts the product has that bug. An empty name: none."""
    if not name:
        yield
        return
    with BUGS[name]():
        yield
