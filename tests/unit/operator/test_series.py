"""The queue of events: series, bounds, and the order of attempts."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import example, given
from hypothesis import strategies as st

from budgets import examples
from elastrain_operator.facts import JobEvent, JobRef
from elastrain_operator.policy.report import series
from elastrain_operator.policy.report.series import COMBINED, DISTINCT, WINDOW, EventQueue, Series
from operator_fixtures import NOW

JOB, OTHER = JobRef("ns", "job", "uid"), JobRef("other", "job", "uid-2")
LOST = JobEvent("WorkerLost", "worker job-1")


def sent(queue: EventQueue, now=NOW) -> list[Series]:
    """Everything that is due, sent."""
    found = []
    while (taken := queue.take(now)) is not None:
        queue.done(taken, taken.count)
        found.append(taken)
    return found


def test_an_event_that_repeats_increases_the_count_of_one_object():
    queue = EventQueue()
    queue.add(JOB, LOST, NOW)
    (first,) = sent(queue)
    queue.add(JOB, LOST, NOW + timedelta(seconds=5))
    queue.add(JOB, LOST, NOW + timedelta(seconds=9))
    (again,) = sent(queue, NOW + timedelta(seconds=9))
    assert (again is first, again.count, again.first, again.last) == (True, 3, NOW, NOW + timedelta(seconds=9))


def test_an_event_begins_a_new_series_after_the_window():
    queue = EventQueue()
    queue.add(JOB, LOST, NOW)
    sent(queue)
    queue.add(JOB, LOST, NOW + WINDOW)
    (fresh,) = sent(queue, NOW + WINDOW)
    assert (fresh.count, fresh.sent, fresh.first) == (1, 1, NOW + WINDOW)


def test_many_messages_of_one_reason_are_combined_and_the_newest_is_shown():
    queue = EventQueue()
    for number in range(DISTINCT + 5):
        queue.add(JOB, JobEvent("Rescaled", f"pause {number} ms"), NOW)
    found = sent(queue)
    assert [s.event.message for s in found[:DISTINCT]] == [f"pause {n} ms" for n in range(DISTINCT)]
    assert [(s.event.message, s.count) for s in found[DISTINCT:]] == [(f"{COMBINED}pause {DISTINCT + 4} ms", 5)]


def test_events_of_one_job_are_sent_in_order_and_one_at_a_time():
    queue = EventQueue()
    for reason in ("TargetSet", "Scaling"):
        queue.add(JOB, JobEvent(reason, ""), NOW)
    queue.add(OTHER, LOST, NOW)
    first, other = queue.take(NOW), queue.take(NOW)
    assert (first.event.reason, other.job, queue.take(NOW)) == ("TargetSet", OTHER, None)
    queue.done(first, 1)
    assert queue.take(NOW).event.reason == "Scaling"


def test_a_rate_limit_holds_back_its_namespace_only_and_for_the_time_asked():
    queue = EventQueue()
    for job in (JOB, OTHER):
        queue.add(job, LOST, NOW)
    queue.failed(queue.take(NOW), NOW, again=True, retry=7.0, limited=True)
    queue.add(JobRef("ns", "second", "uid-3"), LOST, NOW)
    assert [s.job for s in sent(queue)] == [OTHER]
    assert queue.next_due(NOW) == 7.0
    assert len(sent(queue, NOW + timedelta(seconds=7))) == 2


def test_an_event_is_dropped_and_counted_after_its_last_attempt():
    queue, now = EventQueue(), NOW
    queue.add(JOB, LOST, now)
    for _ in range(series.ATTEMPTS):
        now += timedelta(seconds=60)
        queue.failed(queue.take(now), now, again=True)
    assert (queue.is_empty, queue.dropped) == (True, 1)


def test_a_full_queue_drops_new_events_and_counts_them(monkeypatch):
    monkeypatch.setattr(series, "LONGEST_QUEUE", 3)
    queue = EventQueue()
    for number in range(5):
        queue.add(JobRef("ns", "job", f"uid-{number}"), LOST, NOW)
    queue.add(JobRef("ns", "job", "uid-0"), LOST, NOW)
    assert (queue.dropped, [s.count for s in sent(queue)]) == (2, [2, 1, 1])


def test_a_series_begins_again_if_its_object_has_expired():
    queue = EventQueue()
    queue.add(JOB, LOST, NOW)
    sent(queue)
    queue.add(JOB, LOST, NOW)
    queue.vanished(queue.take(NOW))
    (again,) = sent(queue)
    assert (again.sent, again.count) == (1, 1)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "taken", "sent", "refused", "expired", "limited"]),
        st.integers(0, 3),
        st.integers(0, 400),
    )
)


@examples(200)
@given(STEPS)
@example([("add", 0, 0), ("add", 0, 600)])  # a window passes while the event waits
@example([("add", 0, 0), ("taken", 0, 0), ("add", 0, 600), ("limited", 0, 0)])  # and while it is being sent
def test_every_event_is_recorded_or_counted_as_dropped(steps):
    queue, now, added, recorded = EventQueue(), NOW, 0, 0
    taken, count, before = None, 0, 0
    for what, number, seconds in steps:
        now += timedelta(seconds=seconds)
        if what == "add":
            queue.add(JobRef("ns", "job", f"uid-{number % 2}"), JobEvent("WorkerLost", f"worker {number}"), now)
            added += 1
        elif taken is None:
            taken = queue.take(now)
            count, before = (taken.count, taken.sent) if taken else (0, 0)
        else:
            if what in ("taken", "sent"):
                recorded += count - before
                queue.done(taken, count)
            elif what == "expired" and before:
                queue.vanished(taken)
            else:
                queue.failed(taken, now, again=what == "limited", limited=what == "limited")
            taken = None
    if taken is not None:
        queue.failed(taken, now, again=True)
    while not queue.is_empty:
        now += timedelta(seconds=60)
        while taken := queue.take(now):
            recorded += taken.count - taken.sent
            queue.done(taken, taken.count)
    assert recorded + queue.dropped == added
