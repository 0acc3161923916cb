"""Promises of the agent's core that hold for any events in any order. A failure's message is the promise."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

import builders
from budgets import examples
from elastrain.agent.core.events import (
    End,
    Fenced,
    JobSnapshot,
    KillRank,
    Leave,
    PrintStacks,
    Publish,
    Pulse,
    RankExited,
    RankHungUp,
    RankSaid,
    Registered,
    Reincarnate,
    Send,
    Signalled,
    StartRanks,
    Tick,
)
from elastrain.agent.core.machine import Core, Mode
from elastrain.api.messages import Abort, Adopted, Broken, Exit, Finished, Hello, Left, Proposed, Ready, Welcome
from elastrain.api.pages.heartbeat import Beat, Where
from elastrain.api.records import Generation, Target

NPROC = 2


def generation(number: int, ids: tuple[str, ...]) -> Generation:
    return builders.generation(number, *ids, slots=NPROC, leader="a.1")


RANKS = st.integers(0, NPROC - 1)
NUMBERS = st.integers(1, 6)
STEPS = st.integers(0, 99)
MESSAGES = st.one_of(
    RANKS.map(lambda r: Hello(local_rank=r, pid=1)),
    st.just(Ready(store_port=1)),
    st.builds(Adopted, generation=NUMBERS, step=STEPS),
    st.builds(Broken, generation=NUMBERS, step=STEPS, error=st.just("reset")),
    st.builds(Left, step=STEPS),
    st.builds(Finished, step=STEPS),
)
MEMBERS = st.sets(st.sampled_from(["a.1", "a.2", "b.1", "c.1"]))
TARGETS = st.one_of(
    st.none(),
    st.builds(
        Target,
        min=st.just(1),
        max=st.just(4),
        desired=st.integers(0, 4),
        leaving=st.sampled_from([(), ("a",), ("b",)]),
    ),
)
BEATS = st.builds(
    Beat,
    where=st.sampled_from(Where),
    since=st.sampled_from([0.0, -100.0, -1000.0]),
    generation=NUMBERS,
    world_size=st.integers(1, 4),
    commits=st.integers(0, 99),
    compute=st.sampled_from([0.1, 1.0]),
    total=st.sampled_from([0.0, 0.4, 4.0]),
)
HAPPENINGS = st.one_of(
    st.tuples(st.just("say"), RANKS, MESSAGES),
    st.tuples(st.just("hang up"), RANKS),
    st.tuples(st.just("exit"), RANKS, st.sampled_from([(0, 0), (0, 0), (1, 0), (0, 9)])),
    st.tuples(st.just("see"), TARGETS, MEMBERS, st.integers(0, 6), st.sets(NUMBERS), st.booleans()),
    st.tuples(st.just("signal")),
    st.tuples(st.just("fence")),
    st.tuples(st.just("look"), st.dictionaries(RANKS, BEATS)),
    st.tuples(st.just("time"), st.floats(0, 30)),
)


class World:
    """The core's environment, as far as the promises need it: processes exit once, generation numbers only grow."""

    def __init__(self) -> None:
        self.core = Core(builders.settings(nproc=NPROC, stragglers="exclude", min_timeout=50))
        self.now = 0.0
        self.running: set[int] = set()
        self.incarnation = 0
        self.ids = iter(f"a.{i}" for i in range(1, 1000))
        self.history: list[object] = []
        self.newest = 0
        self.feed(Registered(next(self.ids)))

    def feed(self, event) -> None:
        assert self.core.mode is not Mode.ENDED or not self.core.handle(event, self.now), (
            "nothing happens after the end"
        )
        for effect in self.core.handle(event, self.now):
            self.history.append(effect)
            if isinstance(effect, StartRanks):
                starting = set(range(NPROC) if effect.local_ranks is None else effect.local_ranks)
                assert not self.running & starting, "a rank starts only when the earlier one has been reaped"
                assert effect.local_ranks or not self.running, "and all of them only when all have been"
                self.running, self.incarnation = self.running | starting, effect.incarnation
            if isinstance(effect, Reincarnate):
                self.feed(Registered(next(self.ids)))
            if isinstance(effect, KillRank | PrintStacks):
                assert effect.local_rank in self.running, "only a running rank prints its stacks"
            if isinstance(effect, End):
                assert not self.running, "the agent ends only when every rank has been reaped"
                assert Leave() in self.history, "the agent leaves before it ends"

    def happen(self, what: tuple) -> None:
        match what:
            case ("say", rank, message) if rank in self.running:
                self.feed(RankSaid(self.incarnation, rank, message))
            case ("hang up", rank) if rank in self.running:
                self.feed(RankHungUp(self.incarnation, rank))
            case ("exit", rank, (code, signum)) if rank in self.running:
                self.running.discard(rank)
                self.feed(RankExited(self.incarnation, rank, code, signum))
            case ("see", target, members, number, ended, finished):
                self.newest = max(self.newest, number)
                newest = generation(self.newest, tuple(sorted(members))) if self.newest else None
                self.feed(JobSnapshot(target, newest, dict.fromkeys(ended, "a loss"), finished))
            case ("signal",):
                self.feed(Signalled(15))
            case ("fence",):
                self.feed(Fenced(5.0))
            case ("look", beats):
                self.feed(Pulse(self.incarnation, beats))
            case ("time", seconds):
                self.now += seconds
                self.feed(Tick())


def lives(history: list[object]) -> list[tuple[int, object]]:
    """Each effect with the number of its incarnation."""
    life, numbered = 0, []
    for effect in history:
        life += isinstance(effect, StartRanks)
        numbered.append((life, effect))
    return numbered


def to_rank(history: list[object], rank: int) -> list[list[object]]:
    """The messages sent to one rank, one list per incarnation."""
    lives: list[list[object]] = []
    for effect in history:
        if isinstance(effect, StartRanks):
            lives.append([])
        if isinstance(effect, Send) and effect.local_rank == rank:
            lives[-1].append(effect.message)
    return lives


@examples(300)
@given(st.lists(HAPPENINGS, max_size=40))
def test_the_core_keeps_its_promises(happenings):
    world = World()
    for what in happenings:
        world.happen(what)
    assert sum(isinstance(e, End) for e in world.history) <= 1, "a worker ends once"
    published = [e for e in world.history if isinstance(e, Publish)]
    assert all(x != y for x, y in itertools.pairwise(published)), "a record is written when it changes"
    kills = [(life, e.local_rank) for life, e in lives(world.history) if isinstance(e, KillRank)]
    assert len(kills) == len(set(kills)), "a rank that hangs is killed once"
    for rank in range(NPROC):
        for sent in to_rank(world.history, rank):
            proposed = [m.generation.number for m in sent if isinstance(m, Proposed)]
            aborted = [m.generation for m in sent if isinstance(m, Abort)]
            hellos = sum(isinstance(m, Welcome) for m in sent)
            if hellos == 1:
                assert proposed == sorted(set(proposed)), "each generation is sent once, in increasing order"
            assert len(aborted) == len(set(aborted)), "a generation is aborted once"
            assert set(aborted) <= set(proposed), "only a sent generation is aborted"
            assert sum(isinstance(m, Exit) for m in sent) <= 1, "a rank receives one Exit"


@examples(200)
@given(st.lists(HAPPENINGS, max_size=30))
def test_every_drain_ends_in_time(happenings):
    world = World()
    world.happen(("see", None, set(), 0, set(), False))
    for what in happenings:
        world.happen(what)
    world.feed(Signalled(15))
    for _ in range(10):  # no rank answers, but killed ranks die
        due = world.core.deadline()
        if due is not None:
            world.now = max(world.now, due)
        world.feed(Tick())
        if world.core.mode in (Mode.ENDING, Mode.RESTARTING):
            for rank in sorted(world.running):
                world.happen(("exit", rank, (0, 9)))
    assert world.core.mode is Mode.ENDED, "a signal ends the agent within the drain timeout, after any history"
    assert world.now <= 30 * 30 + world.core.settings.drain_timeout + 10
