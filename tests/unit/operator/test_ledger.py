"""Accelerator seconds: the parts always add up to the total held."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import builders
from budgets import examples
from elastrain.api.records import Member, Progress, Rescale, Target
from elastrain_operator.facts import Coordination, Ending, Pod
from elastrain_operator.policy.report import accelerator_seconds
from elastrain_operator.policy.report.accelerator_seconds import TrainingWorkers, account, continued, place, rounded
from elastrain_resource.job import AcceleratorSeconds, GenerationStatus

START = datetime(2030, 1, 1, tzinfo=UTC)
PARTS = ("training", "rescaling", "waiting", "redone", "spare")


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def pod(ordinal: int, bound: float = 0.0, accelerators: int = 1, **fields) -> Pod:
    return Pod(f"job-{ordinal}", f"uid-{ordinal}", ordinal, START, bound=at(bound), accelerators=accelerators, **fields)


def over(one: Pod, seconds: float) -> Pod:
    return dataclasses.replace(one, ending=Ending(at(seconds)), over=True)


def report(generation: int = 1, step: int = 100, step_seconds: float | None = 0.5, *rescales: Rescale) -> Progress:
    return Progress(
        generation=generation, world_size=4, members=4, step=step, step_seconds=step_seconds, rescales=rescales
    )


def rescale(generation: int, pause: float, from_size: int = 4, to_size: int = 4, lost: int = 0) -> Rescale:
    return Rescale(
        generation=generation, from_size=from_size, to_size=to_size, reason="Lost", step=1, pause_seconds=pause,
        lost_steps=lost,
    )  # fmt: skip


def total(usage: AcceleratorSeconds) -> float:
    return sum(getattr(usage, part) for part in PARTS)


PODS = (pod(0, accelerators=2), pod(1, accelerators=2))
TRAIN = TrainingWorkers(frozenset({"job-0", "job-1"}), "training")
TRAINING = account(None, PODS, TRAIN, report(), at(0))


# ---- what goes where -------------------------------------------------------------------------------------------------
def test_usage_begins_with_the_first_observation():
    assert total(TRAINING) == 0
    assert (TRAINING.held, TRAINING.in_generation, TRAINING.use) == (4, 4, "training")


def test_time_in_a_generation_is_training_and_outside_of_it_waiting():
    only_one = account(TRAINING, PODS, TrainingWorkers(frozenset({"job-0"}), "training"), report(), at(10))
    later = account(only_one, PODS, None, None, at(20))
    assert (later.training, later.waiting) == (40 + 20, 20)


def test_a_reported_pause_is_taken_from_the_next_seconds_only():
    told = account(TRAINING, PODS, TRAIN, report(2, 100, 0.5, rescale(2, pause=3.0)), at(10))
    assert (told.training, told.rescaling, told.owed_rescaling) == (40, 0, 12)
    later = account(told, PODS, TRAIN, None, at(20))
    assert (later.training, later.rescaling, later.owed_rescaling) == (68, 12, 0)
    again = account(later, PODS, TRAIN, report(2, 120, 0.5, rescale(2, pause=3.0)), at(30))
    assert again.rescaling == 12, "a rescale is counted once"


def test_a_pause_that_was_seen_is_not_counted_again_when_it_is_measured():
    broken = account(TRAINING, PODS, TrainingWorkers(TRAIN.workers, "rescaling"), report(), at(10))
    healed = account(broken, PODS, TRAIN, report(), at(15))
    told = account(healed, PODS, TRAIN, report(2, 100, 0.5, rescale(2, pause=6.0)), at(15))
    assert (told.rescaling, told.owed_rescaling) == (20, 4), "five of the six seconds were seen"


def test_below_the_minimum_survivors_wait_and_the_measured_pause_contains_it():
    lacking = account(TRAINING, PODS, TrainingWorkers(TRAIN.workers, "waiting"), report(), at(10))
    healed = account(lacking, PODS, TRAIN, report(2, 100, 0.5, rescale(2, pause=100.0)), at(110))
    assert (healed.waiting, healed.rescaling, healed.owed_rescaling) == (400, 0, 0)


def test_a_joiner_owes_no_pause_since_it_waited():
    told = account(TRAINING, PODS, TRAIN, report(2, 100, 0.5, rescale(2, 1.0, from_size=1, to_size=4)), at(10))
    assert told.owed_rescaling == 1.0


def test_lost_steps_are_redone_at_the_pace_of_a_step():
    told = account(TRAINING, PODS, TRAIN, report(2, 90, 0.5, rescale(2, 0.0, lost=10)), at(10))
    later = account(told, PODS, TRAIN, None, at(20))
    assert (later.redone, later.training, later.redone_steps) == (20, 60, 10)


def test_lost_steps_are_priced_when_the_pace_is_known():
    told = account(TRAINING, PODS, TRAIN, report(2, 90, None, rescale(2, 0.0, lost=10)), at(10))
    assert (told.owed_redone, told.unpriced_steps) == (0, 10)
    priced = account(told, PODS, TRAIN, report(2, 92, 0.5, rescale(2, 0.0, lost=10)), at(11))
    assert (priced.owed_redone, priced.unpriced_steps, priced.redone_steps) == (20, 0, 10)


def test_earlier_measurements_are_not_included():
    began = account(None, PODS, TRAIN, report(7, 100, 0.5, rescale(7, 99.0, lost=5)), at(0))
    assert (began.owed_rescaling, began.redone_steps) == (0, 0)


@pytest.mark.parametrize("word", [float("inf"), float("nan"), -5.0])
def test_an_invalid_time_is_not_booked(word):
    told = account(TRAINING, PODS, TRAIN, report(2, 90, word, rescale(2, word, lost=10)), at(10))
    assert (told.owed_rescaling, told.owed_redone, told.unpriced_steps) == (0, 0, 10)
    assert account(TRAINING, PODS, TRAIN, report(2, 90, 0.5, rescale(2, 0.0, lost=-10)), at(10)).redone_steps == 0


# ---- what was held ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("place", [TRAIN, None], ids=["etcd", "no etcd"])
def test_a_time_without_an_operator_is_counted_by_the_next_one_s_first_observation(place):
    found, before = tuple(dataclasses.replace(p, bound=at(100)) for p in PODS), rounded(TRAINING)
    began = account(before, found, place, None, at(100))
    assert total(began) == began.training == pytest.approx(4 * 100)
    assert total(account(began, found, TRAIN, None, at(110))) == pytest.approx(4 * 110)
    assert total(account(before, (over(found[0], 100), found[1]), place, None, at(100))) == pytest.approx(2 * 100)


def test_the_status_has_the_sums_alone_and_the_fields_of_a_newer_operator():
    newer = AcceleratorSeconds.model_validate({"training": 5.0, "until": at(0).isoformat(), "hibernating": 1.0})
    found = rounded(account(newer, PODS, TRAIN, None, at(10)))
    assert found is not None and (found.training, found.model_extra) == (45.0, {"hibernating": 1.0})


def test_a_pod_holds_accelerators_from_its_binding():
    pending = dataclasses.replace(pod(2), bound=None)
    late = pod(3, bound=7)
    assert total(account(TRAINING, (pending, late), None, None, at(0))) == 0
    began = account(None, (pending,), TrainingWorkers(), None, at(0))
    assert total(account(began, (pending, late), TrainingWorkers(), None, at(10))) == pytest.approx(3)


def test_an_ended_worker_holds_accelerators_while_its_sidecars_run():
    sidecar = dataclasses.replace(PODS[0], ending=Ending(at(5)))
    assert account(TRAINING, (sidecar, PODS[1]), TRAIN, None, at(10)).held == 4


def test_a_clock_that_goes_back_decreases_nothing():
    later = account(TRAINING, PODS, TRAIN, None, at(10))
    assert total(account(later, PODS, TRAIN, None, at(3))) == total(later)
    assert account(later, PODS, TRAIN, None, at(3)).until == later.until


def test_usage_continues_between_passes():
    told = account(TRAINING, PODS, TRAIN, report(2, 100, 0.5, rescale(2, pause=3.0)), at(10))
    assert continued(told, at(20)) == account(told, PODS, TRAIN, None, at(20)).model_copy(update={"until": told.until})
    assert continued(accelerator_seconds.Usage(), at(20)) == accelerator_seconds.Usage()


def test_a_rescale_is_written_and_time_alone_is_not():
    later = account(TRAINING, PODS, TRAIN, report(), at(10))
    assert not accelerator_seconds.differs(TRAINING, later)
    assert accelerator_seconds.differs(later, later.model_copy(update={"generation": 7}))
    assert accelerator_seconds.differs(None, later)


# ---- who trains ------------------------------------------------------------------------------------------------------
FORCE = GenerationStatus(number=3, size=2, reason="Grow")


def seen(
    *names: str, number: int = 3, placed: tuple[str, ...] = ("a", "b"), ended: tuple[int, ...] = (), broken: int = 0,
    least: int = 1,
) -> Coordination:  # fmt: skip
    """Live members, all of generation 3; the newest one is ``number``."""
    live = tuple(Member(id=f"job-{n}", worker=f"job-{n}", address="x", generation=3, broken=broken) for n in names)
    newest = builders.generation(number, *(f"job-{n}" for n in placed), ended=ended)
    return Coordination(target=Target(min=least, max=4, desired=2), members=live, generation=newest)


@pytest.mark.parametrize(
    ("coordination", "finishing", "expected"),
    [
        (seen("a", "b"), False, TrainingWorkers(frozenset({"job-a", "job-b"}), "training")),
        (seen("a", "b", "c"), False, TrainingWorkers(frozenset({"job-a", "job-b"}), "training")),
        (seen("a"), False, TrainingWorkers(frozenset({"job-a"}), "rescaling")),
        (seen("a", least=2), False, TrainingWorkers(frozenset({"job-a"}), "waiting")),
        (seen("a"), True, TrainingWorkers(frozenset({"job-a"}), "training")),
        (seen("a", "b", broken=3), False, TrainingWorkers(frozenset({"job-a", "job-b"}), "rescaling")),
        (seen("a", "b", number=4, placed=("a",)), False, TrainingWorkers(frozenset({"job-a", "job-b"}), "training")),
        (
            seen("a", "b", number=4, placed=("a",), ended=(3,)),
            False,
            TrainingWorkers(frozenset({"job-a", "job-b"}), "rescaling"),
        ),
    ],
    ids=["whole", "a joiner", "lost one", "too few", "finishing", "broken", "planned change", "ended"],
)
def test_a_generation_trains_until_it_is_known_to_be_broken(coordination, finishing, expected):
    assert place(FORCE, coordination, finishing) == expected


def test_no_worker_trains_without_a_generation_or_in_an_empty_one():
    assert place(None, seen("a"), False) == TrainingWorkers()
    assert place(GenerationStatus(number=4, size=0, reason="Suspend"), seen("a"), False) == TrainingWorkers()


# ---- whatever happens ------------------------------------------------------------------------------------------------
HAPPENINGS = st.one_of(
    st.tuples(st.just("wait"), st.integers(0, 1000)),
    st.tuples(st.just("bind"), st.integers(1, 8)),
    st.tuples(st.sampled_from(["end", "vanish"]), st.integers(0, 9)),
    st.tuples(st.just("train"), st.integers(0, 4), st.sampled_from(["training", "rescaling", "waiting"])),
    st.tuples(st.just("rescale"), st.floats(0, 100), st.integers(0, 20), st.sampled_from([None, 0.1, 2.0])),
    st.sampled_from(["outage", "restart"]),
)


class History:
    """A job that is observed at every change, and what its pods actually held."""

    def __init__(self) -> None:
        self.now, self.held, self.ordinal, self.slack = 0.0, 0.0, 0, 1e-6
        self.pods: dict[str, Pod] = {}
        self.place: TrainingWorkers | None = TrainingWorkers()
        self.progress: Progress | None = None
        self.usage: AcceleratorSeconds = account(None, (), TrainingWorkers(), None, at(0))
        self.written = rounded(self.usage)

    def running(self) -> list[Pod]:
        return [p for p in self.pods.values() if not p.over]

    def look(self, wrote: bool = False) -> None:
        before = self.usage
        self.usage = account(before, self.pods.values(), self.place, self.progress, at(self.now))
        for part in PARTS:
            assert getattr(self.usage, part) >= getattr(before, part), "no part ever decreases"
        if before is self.written:  # another operator's
            self.held, self.slack = total(self.usage), self.slack + 0.01
        assert total(self.usage) == pytest.approx(self.held, abs=self.slack), "the parts add up to what was held"
        assert self.usage.owed_redone >= 0
        assert self.usage.in_generation <= self.usage.held
        if wrote or accelerator_seconds.differs(self.written, self.usage):
            self.written = rounded(self.usage)

    def happen(self, what: object) -> None:
        wrote = False
        match what:
            case ("wait", int(seconds)):
                self.now += seconds
                self.held += seconds * sum(p.accelerators for p in self.running())
            case ("bind", int(accelerators)):
                self.ordinal += 1
                self.pods[f"job-{self.ordinal}"] = pod(self.ordinal, self.now, accelerators)
            case (("end" | "vanish") as how, int(which)) if self.running():
                gone = self.running()[which % len(self.running())]
                self.pods[gone.name] = over(gone, self.now)
                if how == "vanish":
                    del self.pods[gone.name]
                wrote = True  # status.replicas has changed
            case ("train", int(count), str(use)):
                self.place = TrainingWorkers(frozenset(p.name for p in self.running()[:count]), use)  # type: ignore[arg-type]
            case ("rescale", float(pause), int(lost), pace):
                number = self.progress.generation + 1 if self.progress else 1
                self.progress = report(number, 1, pace, rescale(number, pause, lost=lost))
            case "outage":
                self.place = None
            case "restart":
                self.usage = self.written
        self.look(wrote)


@examples(150)
@given(st.lists(HAPPENINGS, max_size=40))
def test_the_parts_add_up_to_the_total_for_any_history_and_operator(history):
    story = History()
    for what in history:
        story.happen(what)


def phased(reason: str, pause: float, **phases: float) -> AcceleratorSeconds:
    one = rescale(2, pause).model_copy(update={"reason": reason, "phases": phases})
    return account(account(TRAINING, PODS, TRAIN, report(2, 100, 0.5, one), at(10)), PODS, TRAIN, None, at(20))


def test_a_pause_is_divided_by_the_phases_that_the_trainer_measured():
    usage = phased("Lost", 2.0, detect=1.0, decide=0.1, connect=0.2, transfer=0.3, first_step=0.4)
    assert usage.rescaling_phases == pytest.approx(
        {"detect": 4.0, "decide": 0.4, "connect": 0.8, "transfer": 1.2, "first_step": 1.6}
    )
    assert sum(usage.rescaling_phases.values()) == pytest.approx(usage.rescaling)


def test_a_planned_change_connects_beside_training_and_that_is_no_part_of_its_pause():
    assert phased("Grow", 0.5, connect=9.0, transfer=0.5).rescaling_phases == pytest.approx({"transfer": 2.0})


@pytest.mark.parametrize("word", [float("inf"), float("nan"), -5.0])
def test_invalid_and_unknown_phases_are_not_booked(word):
    assert sum(phased("Lost", 1.0, detect=word, decide=0.5).rescaling_phases.values()) == pytest.approx(2.0)
    assert phased("Lost", 1.0, detect=0.5, coffee=0.5).rescaling_phases == {"detect": 2.0}


def test_phases_longer_than_their_pause_are_cut_to_it():
    assert phased("Lost", 1.0, detect=3.0, decide=1.0).rescaling_phases == pytest.approx({"detect": 3.0, "decide": 1.0})


@examples(60)
@given(st.lists(st.floats(0.1, 20), min_size=1, max_size=5), st.integers(1, 6))
def test_every_measured_pause_is_booked_in_the_end(pauses, accelerators):
    pods = (pod(0, accelerators=accelerators),)
    inside = TrainingWorkers(frozenset({"job-0"}), "training")
    usage = account(None, pods, inside, report(0), at(0))
    for n, pause in enumerate(pauses, 1):
        usage = account(usage, pods, inside, report(n, 1, 0.1, rescale(n, pause)), at(n))
    usage = account(usage, pods, inside, None, at(1000))
    assert usage.rescaling == pytest.approx(sum(pauses) * accelerators)
    assert usage.training == pytest.approx(1000 * accelerators - usage.rescaling)
