"""Rescales, found in events and in the status, each once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from elastrain_cli.client import Event
from elastrain_dashboard.timeline import KEPT, Moment, merged
from elastrain_resource import rescaled
from elastrain_resource.job import LastRescale

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def rescale(to: int = 2, pause: float = 0.3142, time: datetime | None = None) -> LastRescale:
    told = time.isoformat() if time else None
    return LastRescale(
        from_=1, to=to, reason="Grow", pause_seconds=pause, lost_steps=0, phases={"transfer": 0.0351}, time=told
    )


def event(what: LastRescale, time: datetime, reason: str = rescaled.REASON) -> Event:
    return Event(time=time, type="Normal", reason=reason, message=rescaled.tell(what), count=1)


def test_the_rescale_in_the_status_and_its_event_are_one() -> None:
    last = rescale(time=NOW)
    (only,) = merged((), [event(last, NOW + timedelta(seconds=1))], last)
    assert only == Moment(NOW, last), "the status is more exact"
    assert merged((only,), [event(last, NOW + timedelta(seconds=1))], last) == (only,)


def test_equal_rescales_at_other_times_are_distinct() -> None:
    events = [event(rescale(), NOW), event(rescale(), NOW + timedelta(minutes=10))]
    assert [m.time for m in merged((), events, None)] == [NOW, NOW + timedelta(minutes=10)]


def test_rescales_stay_known_after_their_events_expire() -> None:
    known = merged((), [event(rescale(), NOW)], None)
    assert merged(known, [], rescale(to=3, time=NOW + timedelta(hours=2)))[0] == known[0]


def test_other_events_are_ignored() -> None:
    assert merged((), [event(rescale(), NOW, reason="Scaling")], None) == ()


def test_the_newest_are_kept() -> None:
    events = [event(rescale(to=n + 1), NOW + timedelta(seconds=n)) for n in range(KEPT + 20)]
    found = merged((), events, None)
    assert (len(found), found[-1].rescale.to) == (KEPT, KEPT + 20)
