"""Workers of one group are charged to one Workload of Kueue."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from budgets import examples
from elastrain_operator.facts import Charge, Pod, Slot
from elastrain_operator.policy.size import replicas

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def pod(group: int, place: int, workload: str) -> Pod:
    name = f"p-{group}-{place}"
    return Pod(name, name, 0, NOW, slot=Slot(group, place), workload=workload)


def charges(**vacant: int) -> tuple[Charge, ...]:
    return tuple(Charge(name) for name, number in vacant.items() for _ in range(number))


def charged(slots: list[Slot], vacant: tuple[Charge, ...], *pods: Pod) -> list[tuple[int, int, str]]:
    return [(s.group, s.place, seat.workload) for s, seat in replicas.charged(slots, pods, vacant)]


def test_new_groups_fill_one_workload_after_the_other() -> None:
    slots = [Slot(g, n) for g in range(3) for n in range(2)]
    made = charged(slots, charges(base=4, extra=2))
    assert [w for _, _, w in made] == ["base"] * 4 + ["extra"] * 2


def test_a_lost_worker_is_replaced_in_the_workload_of_its_mates() -> None:
    mates = (pod(0, 0, "base"), pod(1, 0, "extra"))
    assert charged([Slot(1, 1), Slot(0, 1)], charges(base=1, extra=1), *mates) == [(1, 1, "extra"), (0, 1, "base")]


def test_a_worker_waits_while_the_workload_of_its_mates_has_no_place() -> None:
    """Kueue takes their Workload back, say: a place in another one would outlive them."""
    assert charged([Slot(0, 1)], charges(other=2), pod(0, 0, "evicted")) == []
    assert charged([Slot(0, 1)], charges(other=2)) == [(0, 1, "other")]


def test_a_group_does_not_begin_where_only_a_part_of_it_has_room() -> None:
    slots = [Slot(1, 0), Slot(1, 1)]
    assert charged(slots, charges(base=1)) == []
    assert charged(slots, charges(base=1, extra=2)) == [(1, 0, "extra"), (1, 1, "extra")]


def test_workers_without_groups_take_the_places_in_order() -> None:
    slots = [Slot(n, 0) for n in range(3)]
    assert charged(slots, charges(base=2, extra=1), Pod("p", "p", 0, NOW)) == [
        (0, 0, "base"), (1, 0, "base"), (2, 0, "extra"),
    ]  # fmt: skip


@examples(200)
@given(
    st.integers(1, 3),
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 6), max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcde")), max_size=4),
    st.integers(0, 3),
)
def test_no_place_is_taken_twice_and_no_group_has_two_workloads(
    size: int, vacant: dict[str, int], broken: list[tuple[int, str]], more: int
) -> None:
    there = [pod(group, 0, workload) for group, workload in dict(broken).items()]
    known = {p.slot.group for p in there if p.slot}
    fresh = [g for g in range(20) if g not in known][:more]
    slots = [Slot(p.slot.group, n) for p in there if p.slot for n in range(1, size)]
    slots += [Slot(g, n) for g in fresh for n in range(size)]
    made = charged(slots, charges(**vacant), *there)
    for workload, number in vacant.items():
        assert sum(w == workload for _, _, w in made) <= number
    homes = {(p.slot.group, p.workload) for p in there if p.slot} | {(g, w) for g, _, w in made}
    assert len({g for g, _ in homes}) == len(homes), "one group, one Workload"
