"""Leader election: each rule by example, and two promises over random clocks, delays, losses and stalls."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets import examples
from elastrain_operator.leader.lease import (
    Action,
    LeaseObservation,
    Record,
    Step,
    Terms,
    attempt_seconds,
    decide,
    leads_until,
    retry_after,
    saw,
    wrote,
)

TERMS = Terms(duration=10.0)
FREE = LeaseObservation("me")
OTHER = Record("5", "other", 10.0)
MINE = Record("6", "me", 10.0)


def led(sent: float = 100.0) -> LeaseObservation:
    """``me`` has led since ``sent``."""
    return wrote(FREE, MINE, sent, sent + 0.1)


# ---- standing by -----------------------------------------------------------------------------------------------------
def test_no_decision_before_the_first_read():
    assert decide(FREE, 100.0, TERMS) == Action(Step.WAIT, 0.0)


def test_lease_is_acquired_if_there_is_none_or_it_was_released():
    assert decide(saw(FREE, None, 100.0), 100.0, TERMS) == Action(Step.WRITE)
    assert decide(saw(FREE, Record("7", "", 10.0), 100.0), 100.0, TERMS) == Action(Step.WRITE)


def test_lease_is_acquired_if_its_holder_was_silent_for_its_duration():
    observation = saw(FREE, OTHER, 100.0)
    assert decide(observation, 100.0, TERMS) == Action(Step.WAIT, 1.0)
    observation = saw(observation, OTHER, 109.5)
    assert decide(observation, 109.5, TERMS) == Action(Step.WAIT, 0.5)
    assert decide(observation, 110.0, TERMS) == Action(Step.WRITE)


def test_a_renewal_restarts_the_wait():
    observation = saw(saw(FREE, OTHER, 100.0), Record("6", "other", 10.0), 109.9)
    assert decide(observation, 110.0, TERMS) == Action(Step.WAIT, 1.0)


def test_the_holder_s_duration_counts():
    observation = saw(FREE, Record("5", "other", 60.0), 100.0)
    assert decide(observation, 159.0, TERMS) == Action(Step.WAIT, 1.0)
    assert decide(observation, 160.0, TERMS) == Action(Step.WRITE)


def test_the_holder_s_tenure_is_awaited_if_its_lease_is_deleted():
    observation = saw(saw(FREE, OTHER, 100.0), None, 105.0)
    assert decide(observation, 114.0, TERMS) == Action(Step.WAIT, 1.0)
    assert decide(observation, 115.0, TERMS) == Action(Step.WRITE)


def test_lease_is_recognized_if_the_response_to_its_acquisition_was_lost():
    assert decide(saw(FREE, MINE, 100.0), 100.0, TERMS) == Action(Step.WRITE)


# ---- leading ---------------------------------------------------------------------------------------------------------
def test_tenure_counts_from_before_the_renewal_was_sent():
    assert leads_until(wrote(FREE, MINE, 100.0, 103.0), TERMS) == 108.0


def test_leader_renews_when_it_is_due():
    assert decide(led(), 101.5, TERMS) == Action(Step.WAIT, 0.5)
    assert decide(led(), 102.0, TERMS) == Action(Step.WRITE)


@pytest.mark.parametrize(
    ("shown", "now", "why"),
    [
        (MINE, 108.0, "could not be renewed for 8.0 s"),
        (OTHER, 101.0, "taken over by other"),
        (Record("9", "", 1.0), 101.0, "was released"),
        (None, 101.0, "was deleted"),
    ],
)
def test_leader_steps_down_if_it_is_late_or_the_lease_is_not_its_own(shown, now, why):
    decided = decide(saw(led(), shown, now), now, TERMS)
    assert decided.step is Step.STEP_DOWN
    assert why in decided.why


def silence_until_it_steps_down(answers: float) -> float:
    """Seconds for which the Lease was not renewed when a leader steps down, whose requests are answered in so many
    seconds; infinite: it leads on."""
    observation, now = led(100.0), 100.0
    while now < 200.0:
        match decide(observation, now, TERMS):
            case Step.STEP_DOWN, _, _:
                return now - 100.0
            case Step.WAIT, seconds, _:
                now += seconds
            case _:
                limit = attempt_seconds(observation, now, TERMS)
                now += min(answers, limit)
                if answers < limit:
                    return float("inf")
                now += retry_after(TERMS, answered=False)
    return float("inf")


def test_a_leader_uses_its_tenure_for_two_attempts_while_the_api_server_does_not_answer():
    assert silence_until_it_steps_down(3.9) == float("inf"), "a late answer is an answer"
    assert silence_until_it_steps_down(1e9) == pytest.approx(TERMS.hold)
    assert TERMS.hold <= 0.8 * TERMS.duration, "the rest is for clocks that run at different rates"
    assert TERMS.renew + TERMS.attempt + TERMS.attempt / 2 <= TERMS.hold


def test_a_refused_renewal_is_not_repeated_at_once():
    assert retry_after(TERMS, answered=True) == TERMS.poll


# ---- together --------------------------------------------------------------------------------------------------------
class Server:
    """The API server's one Lease."""

    def __init__(self) -> None:
        self.record: Record | None = None
        self._versions = itertools.count(1)

    def write(self, known: Record | None, holder: str, duration: float) -> Record | None:
        """The new record; None: it is not as known."""
        if (known and known.version) != (self.record and self.record.version):
            return None
        self.record = Record(str(next(self._versions)), holder, duration)
        return self.record


class Replica:
    def __init__(self, world: World, number: int, rate: float) -> None:
        self.world, self.number, self.rate = world, number, rate
        self.offset = world.chance.uniform(-1e6, 1e6)
        self.lives = itertools.count(1)
        self.alive = True
        self.observation = self._born()

    def _born(self) -> LeaseObservation:
        return LeaseObservation(f"{self.number}.{next(self.lives)}")

    def clock(self) -> float:
        return self.offset + self.rate * self.world.now

    def wake(self) -> None:
        """One decision, executed as in ``election.py``."""
        if not self.alive:
            return
        match decide(self.observation, self.clock(), TERMS):
            case Step.STEP_DOWN, _, _:
                self.world.ends.append((self.observation.me, self.world.now))
                self.observation = self._born()
                self.world.after(self.world.chance.uniform(0, 3), self.wake)
            case Step.WAIT, seconds, _:
                pause = seconds / self.rate + self.world.stall()
                self.world.after(pause, self.wake if self.observation.renewed is not None else self.look)
            case _:
                self.write()

    def look(self) -> None:
        if self.alive:
            self._call(lambda: self.world.server.record, lambda record: saw(self.observation, record, self.clock()))

    def write(self) -> None:
        known, me, sent = self.observation.record, self.observation.me, self.clock()

        def answered(record: Record | None) -> LeaseObservation | None:
            if record is None:
                self.look()
                return None
            observation = wrote(self.observation, record, sent, self.clock())
            until = ((leads_until(observation, TERMS) or 0.0) - self.offset) / self.rate
            self.world.leads(me, until)
            return observation

        self._call(lambda: self.world.server.write(known, me, TERMS.duration), answered)

    def _call(self, on_server: Callable[[], object], on_answer: Callable[[object], LeaseObservation | None]) -> None:
        """A request and its answer, each of which may be late or lost; it times out after ``attempt`` seconds."""
        there, back = self.world.delay(), self.world.delay()
        life = self.observation.me
        given_up = attempt_seconds(self.observation, self.clock(), TERMS) / self.rate
        if not self.world.loses():

            def arrives() -> None:
                answer = on_server()
                if there + back < given_up and not lost:
                    self.world.after(back, lambda: self._answered(life, on_answer, answer))

            lost = self.world.loses()
            self.world.after(there, arrives)
            if there + back < given_up and not lost:
                return
        self.world.after(given_up + retry_after(TERMS, answered=False) / self.rate, self.wake)

    def _answered(self, life: str, on_answer: Callable[[object], LeaseObservation | None], answer: object) -> None:
        if not self.alive or life != self.observation.me:
            return
        observation = on_answer(answer)
        if observation is not None:
            self.observation = observation
            self.wake()


class World:
    """Real time, a network, and replicas whose clocks run at different rates."""

    def __init__(self, seed: int, *, faults: bool, skew: float) -> None:
        self.chance = random.Random(seed)
        self.faults = faults
        self.now = 0.0
        self.server = Server()
        self.tenures: list[tuple[str, float, float]] = []
        self.ends: list[tuple[str, float]] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        rates = [self.chance.uniform(1 - skew, 1 + skew) for _ in range(3)]
        self.replicas = [Replica(self, i, rate) for i, rate in enumerate(rates)]
        for replica in self.replicas:
            self.after(self.chance.uniform(0, 2), replica.wake)

    def delay(self) -> float:
        return self.chance.choice([0.0, 0.01, 0.3, 2.0]) if self.faults else self.chance.uniform(0, 0.1)

    def loses(self) -> bool:
        return self.faults and self.chance.random() < 0.1

    def stall(self) -> float:
        """Seconds for which the process is stopped while its clock advances."""
        return self.chance.choice([3.0, 8.0, 30.0]) if self.faults and self.chance.random() < 0.05 else 0.0

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._order), call))

    def leads(self, who: str, until: float) -> None:
        for other, since, end in self.tenures:
            assert other == who or end <= self.now or until <= self.now, (
                f"two never lead at once: {other} from {since:.2f} to {end:.2f}, {who} {self.now:.2f} to {until:.2f}"
            )
        self.tenures.append((who, self.now, until))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, call = heapq.heappop(self._queue)
            call()
        self.now = end

    @property
    def leader(self) -> str | None:
        return next((who for who, since, until in reversed(self.tenures) if since <= self.now < until), None)


@examples(150)
@given(st.integers(0, 2**32))
def test_two_never_lead_at_once_if_clocks_drift_requests_are_lost_and_processes_stall(seed):
    world = World(seed, faults=True, skew=0.1)
    world.run(300)
    assert world.tenures, "some replica leads at some time"


@examples(100)
@given(st.integers(0, 2**32))
def test_another_leads_within_fifteen_seconds_if_the_leader_dies(seed):
    world = World(seed, faults=False, skew=0.05)
    world.run(20 + seed % 7)
    first = world.leader
    assert first is not None
    next(r for r in world.replicas if r.observation.me == first).alive = False
    world.run(15)
    assert world.leader not in (None, first)
    assert len({who for who, _, _ in world.tenures}) == 2, "a healthy leader is never replaced"
