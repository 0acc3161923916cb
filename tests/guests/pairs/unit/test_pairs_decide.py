"""Which nodes are paired, and which node is blamed for a bad pair."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from elastrain_pairs.decide import (
    MOST_PARTICIPANTS,
    MOST_ROUNDS,
    SLOW_FACTOR,
    blame,
    is_complete,
    is_over,
    judge,
    next_round,
    representatives,
)
from elastrain_pairs.records import Participant, Report

GOOD = {"latency": 0.0005, "rate": 10.0}


def participant(number: int, node: str | None = None, reports: tuple[Report, ...] = ()) -> Participant:
    name = f"w{number}"
    return Participant(
        id=name, worker=name, node=f"n{number}" if node is None else node, address="a", port=1, reports=reports
    )


@dataclass
class World:
    """Nodes with given measurements; a pair is bad if one of its ends is faulty."""

    size: int
    sick: frozenset[int] = frozenset()
    dies: dict[int, int] = field(default_factory=dict)
    """Round in which a participant goes without a word, by number."""
    slow: bool = False
    """Sick ones are slow; else their sums do not come."""

    def play(self) -> tuple[list[tuple[tuple[str, str], ...]], set[str]]:
        """All rounds, and the ids that are blamed."""
        there = {c.id: c for c in map(participant, range(self.size))}
        ids = list(there)
        rounds: list[tuple[tuple[str, str], ...]] = []
        while pairs := next_round(ids, rounds, judge(rounds, there), there):
            number = len(rounds)
            for n in (n for n, at in self.dies.items() if at == number):
                there.pop(f"w{n}", None)
            rounds.append(pairs)
            for pair in pairs:
                self._measure(pair, number, there)
            assert is_over(pairs, number, there)
        return rounds, {s.id for s in blame(judge(rounds, there), there)}

    def _measure(self, pair, number, there) -> None:
        well = not any(int(i[1:]) in self.sick for i in pair) and all(i in there for i in pair)
        figures = GOOD if well else {**GOOD, "rate": 10.0 / SLOW_FACTOR / 1.1}
        for me, partner in (pair, pair[::-1]):
            if me in there:
                ok = well or (self.slow and partner in there)
                report = Report(round=number, partner=partner, ok=ok, **figures, why="" if ok else "refused")
                there[me] = there[me].model_copy(update={"reports": (*there[me].reports, report)})


worlds = st.integers(0, 14).flatmap(
    lambda size: st.builds(
        World,
        st.just(size),
        st.frozensets(st.integers(0, max(0, size - 1)), max_size=size),
        st.dictionaries(st.integers(0, max(0, size - 1)), st.integers(0, 3), max_size=3),
    )
)


@given(worlds)
def test_no_participant_is_twice_in_a_round_and_no_pair_repeats(world):
    rounds, _ = world.play()
    assert len(rounds) <= MOST_ROUNDS
    for pairs in rounds:
        inside = [i for pair in pairs for i in pair]
        assert len(inside) == len(set(inside))
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(met) == len(set(met))


@given(worlds)
def test_only_faulty_nodes_are_blamed_if_any_node_dies_meanwhile(world):
    _, blamed = world.play()
    assert blamed <= {f"w{n}" for n in world.sick}, "a node is blamed for its partner's fault"


@given(st.integers(3, 40).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1), st.booleans())))
def test_the_one_sick_node_of_three_or_more_is_always_found(drawn):
    size, sick, slow = drawn
    slow = slow and size > 3  # of three nodes only one pair is good: too few to define the usual rate
    assert World(size, frozenset({sick}), slow=slow).play()[1] == {f"w{sick}"}


@given(
    st.integers(6, 40).flatmap(lambda n: st.tuples(st.just(n), st.frozensets(st.integers(0, n - 1), max_size=n // 6)))
)
def test_all_sick_nodes_are_found_if_they_are_few(drawn):
    size, sick = drawn
    assert World(size, sick).play()[1] == {f"w{n}" for n in sick}


def test_of_two_nodes_neither_is_blamed():
    rounds, blamed = World(2, frozenset({0})).play()
    assert (len(rounds), blamed) == (1, set())


def test_no_node_is_blamed_if_all_pairs_fail():
    assert World(8, frozenset(range(8))).play()[1] == set(), "that is not one node's fault"


def test_healthy_nodes_are_measured_twice_and_no_more():
    rounds, _ = World(8).play()
    assert [len(pairs) for pairs in rounds] == [4, 4]


def test_message_names_the_partners_and_the_figures():
    there = {c.id: c for c in map(participant, range(4))}
    rounds: list[tuple[tuple[str, str], ...]] = []
    world = World(4, frozenset({2}))
    while pairs := next_round(list(there), rounds, judge(rounds, there), there):
        rounds.append(pairs)
        for pair in pairs:
            world._measure(pair, len(rounds) - 1, there)
    (sick,) = blame(judge(rounds, there), there)
    assert (sick.id, sick.node) == ("w2", "n2")
    assert sick.message.endswith("while 3 of 4 nodes passed with other partners")
    assert "all-reduce with n" in sick.message
    assert sick.message.count("(refused)") == 2


def test_a_slow_pair_has_the_usual_figures():
    fast = {f"w{n}": participant(n, reports=(Report(round=0, partner=f"w{n ^ 1}", ok=True, **GOOD),)) for n in range(6)}
    slow = {i: Report(round=0, partner="x", ok=True, latency=0.02, rate=1.0) for i in ("w6", "w7")}
    there = fast | {i: participant(int(i[1:]), reports=(r,)) for i, r in slow.items()}
    outcomes = judge([(("w0", "w1"), ("w2", "w3"), ("w4", "w5"), ("w6", "w7"))], there)
    assert [o.good for o in outcomes] == [True, True, True, False]
    assert outcomes[-1].detail == "20.00 ms, 1.00 GB/s; usual: 0.50 ms, 10.00 GB/s"


def test_pair_is_unknown_if_one_end_has_not_reported():
    there = {
        "w0": participant(0, reports=(Report(round=0, partner="w1", ok=False, why="refused"),)),
        "w1": participant(1),
    }
    assert judge([(("w0", "w1"),)], there) == []
    assert not is_over([("w0", "w1")], 0, there)
    assert is_over([("w0", "w1")], 0, {"w0": there["w0"]}), "a gone participant is not awaited"


def test_one_worker_of_each_node_is_measured():
    chosen = representatives(
        [participant(0, "a"), participant(1, "a"), participant(2, "b"), participant(3, ""), participant(4, "")]
    )
    assert [c.id for c in chosen] == ["w0", "w2", "w3", "w4"]


def test_a_group_forms_when_all_desired_workers_have_come_or_the_wait_is_over():
    assert is_complete(4, 0, 4, waited=0, wait=60)
    assert is_complete(1, 4, 5, waited=0, wait=60), "a job that grows by one does not wait for its members"
    assert not is_complete(3, 0, 4, waited=59, wait=60)
    assert is_complete(3, 0, 4, waited=60, wait=60)
    assert not is_complete(3, 0, None, waited=0, wait=60)
    assert MOST_PARTICIPANTS >= 2
