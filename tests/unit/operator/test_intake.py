"""What the operator keeps of the records that jobs write: a bounded number of bytes, in bounded portions."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from budgets import examples
from elastrain.api.keys import JobKeys
from elastrain.etcd import Batch, Delete, Event, KeyValue, Put
from elastrain_operator.records.intake import Intake, Limits

ONE, TWO = JobKeys("ns", "one", "uid-1"), JobKeys("ns", "two", "uid-2")
LIMITS = Limits(record=1000, member=100, job=5000, all=8000, changes=10)
HASTY = replace(LIMITS, churn=12000, unread=3000)


def kv(key: str, size: int = 10, revision: int = 1) -> KeyValue:
    return KeyValue(key, b"x" * size, revision, revision)


class Watched:
    """The watch's thread and the loop in one; ``kept`` is what the mirror then has."""

    def __init__(self) -> None:
        self.intake = Intake(LIMITS)
        self.kept: dict[str, bytes] = {}
        self.portions: list[Batch] = []
        self.revision = 0

    def write(self, *changes: KeyValue | str, snapshot: bool = False) -> bool:
        self.revision += 1
        events: list[Event] = []
        for change in changes:
            if isinstance(change, str):
                events.append(Delete(change, self.revision))
            elif (kept := self.intake.sift(change)) is not None:
                events.append(Put(kept))
        return self.intake.put(Batch(tuple(events), self.revision, snapshot))

    def drain(self) -> None:
        while True:
            batch = self.intake.take()
            self.portions.append(batch)
            for event in batch.events:
                if isinstance(event, Put):
                    self.kept[event.kv.key] = event.kv.value
                else:
                    self.kept.pop(event.key, None)
            if not self.intake.more:
                return


def test_records_under_keys_that_no_job_has_are_dropped():
    watched = Watched()
    unknown = (ONE.prefix + "secret", ONE.pairs_participant("a"), "/elastrain/x", ONE.member("m" * 2000))
    watched.write(*map(kv, unknown), kv(ONE.target))
    watched.drain()
    assert list(watched.kept) == [ONE.target]
    assert watched.intake.dropped == len(unknown)


def test_a_record_that_is_too_large_loses_its_content_so_that_it_counts_as_unreadable():
    watched = Watched()
    watched.write(kv(ONE.target, 1001), kv(ONE.progress, 900), kv(ONE.member("a"), 101), kv(ONE.member("b"), 99))
    watched.drain()
    assert {key: len(value) for key, value in watched.kept.items()} == {
        ONE.target: 0, ONE.progress: 900, ONE.member("a"): 0, ONE.member("b"): 99,
    }  # fmt: skip


def test_a_job_that_writes_too_much_within_a_minute_is_refused():
    watched, now = Watched(), [0.0]
    watched.intake = Intake(HASTY, lambda: now[0])
    for second in range(100):
        now[0] = float(second)
        watched.write(kv(ONE.progress, 100))
    assert not watched.intake.refused, "slowly it may"
    for _ in range(60):
        watched.write(kv(ONE.progress, 200))
    assert "within 60 s" in watched.intake.refused[ONE]
    assert TWO not in watched.intake.refused


def test_a_job_that_fills_etcd_under_keys_which_are_not_read_is_refused():
    watched, now = Watched(), [0.0]
    watched.intake = Intake(HASTY, lambda: now[0])
    for minute in range(40):
        now[0] = minute * 61.0
        watched.write(kv(f"{ONE.prefix}mine/{minute}", 100))
    assert "under keys of its own" in watched.intake.refused[ONE]


def test_a_job_with_too_many_records_is_refused_and_others_are_not():
    watched = Watched()
    watched.write(kv(ONE.owner), kv(ONE.target), kv(TWO.target))
    for n in range(200):
        watched.write(kv(ONE.member(str(n)), 90))
    watched.drain()
    assert list(watched.intake.refused) == [ONE]
    assert "its records take more than" in watched.intake.refused[ONE]
    assert set(watched.kept) == {ONE.owner, TWO.target}
    watched.write(kv(TWO.progress))
    watched.drain()
    assert TWO.progress in watched.kept


def test_a_job_is_refused_for_what_its_records_take_in_memory():
    watched = Watched()
    for n in range(4):
        record = kv(ONE.roster(n))
        watched.write(replace(record, value=b"[]," * 9), replace(kv(TWO.roster(n)), value=b"[] " * 9))
    assert list(watched.intake.refused) == [ONE], "each of its lists takes more than its characters"


def test_a_refused_job_is_read_again_if_its_records_were_deleted():
    watched = Watched()
    watched.write(kv(ONE.owner), *(kv(ONE.member(str(n)), 90) for n in range(200)))
    watched.drain()
    watched.write(ONE.owner)
    assert watched.intake.refused == {}
    watched.write(kv(ONE.owner), kv(ONE.target))
    watched.drain()
    assert set(watched.kept) == {ONE.owner, ONE.target}


def test_the_largest_job_is_refused_if_all_have_too_many_records():
    watched = Watched()
    jobs = [JobKeys("ns", f"job-{n}", f"uid-{n}") for n in range(3)]
    for n, keys in enumerate(jobs):
        watched.write(*(kv(keys.roster(number), 900) for number in range(2 + n)))
    assert list(watched.intake.refused) == [jobs[2]]
    watched.drain()
    assert {JobKeys.of(key) for key in watched.kept} == set(jobs[:2])


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4000)), min_size=30, max_size=60))
@examples(30)
def test_bound_holds_whatever_the_records_are_that_refused_jobs_keep(owners):
    watched = Watched()
    for number, size in owners:
        keys = JobKeys("ns", f"job-{number}", f"uid-{number}")
        watched.write(kv(keys.owner, size), kv(keys.target, 900))
        watched.drain()
    kept = {key: value for key, value in watched.kept.items() if key.endswith("owner")}
    assert all(len(value) <= LIMITS.owner for value in kept.values())
    assert sum(map(len, watched.kept.values())) <= LIMITS.all + sum(len(k) + LIMITS.owner for k in kept)


def test_the_loop_is_told_once_and_gets_the_last_change_of_each_key():
    watched = Watched()
    assert watched.write(kv(ONE.progress, 1))
    for n in range(2, 500):
        assert not watched.write(kv(ONE.progress, n))
    watched.write(kv(TWO.progress), TWO.progress)
    watched.drain()
    (portion,) = watched.portions
    assert watched.kept == {ONE.progress: b"x" * 499}
    assert len(portion.events) == 2
    assert watched.write(kv(ONE.progress, 3)), "told again"


def test_a_job_with_very_many_changes_delays_only_itself():
    watched = Watched()
    watched.intake = Intake(replace(LIMITS, portion=11 * 256))
    watched.write(*(kv(ONE.member(str(n))) for n in range(35)), kv(TWO.target), snapshot=True)
    first = watched.intake.take()
    assert first.snapshot, "each job has had its turn"
    assert [e.kv.key for e in first.events if isinstance(e, Put)].count(TWO.target) == 1
    assert len(first.events) == 11
    watched.drain()
    assert len(watched.portions) == 3
    assert not any(portion.snapshot for portion in watched.portions)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 900)), min_size=1, max_size=60))
@examples(50)
def test_a_portion_is_bounded_and_a_list_ends_once_each_job_has_had_its_turn(records):
    watched = Watched()
    watched.intake = Intake(replace(LIMITS, portion=2000, job=10**6, all=10**6, member=10**6))
    jobs = {name: JobKeys("ns", name, name) for name in "abcdef"}
    for number, (name, size) in enumerate(records):
        watched.write(kv(jobs[name].member(str(number)), size), snapshot=number == len(records) - 1)
    watched.drain()
    assert all(sum(256 + len(e.kv.value) for e in p.events[:-1]) < 2000 for p in watched.portions)
    (end,) = [n for n, portion in enumerate(watched.portions) if portion.snapshot]
    served = {JobKeys.of(e.kv.key).uid for portion in watched.portions[: end + 1] for e in portion.events}
    assert served == {name for name, _ in records}
    assert len(watched.kept) == len(records)


def test_a_job_is_refused_if_too_many_of_its_records_within_a_minute_cannot_be_read():
    watched, now = Watched(), [0.0]
    watched.intake = Intake(LIMITS, lambda: now[0])
    for second in range(2 * LIMITS.unreadable):
        now[0] = float(second)
        watched.write(kv(ONE.progress), kv(TWO.progress))
        watched.intake.unreadable(ONE)
    assert not watched.intake.refused, "slowly it may"
    for _ in range(LIMITS.unreadable + 1):
        watched.intake.unreadable(ONE)
    assert "cannot be read" in watched.intake.refused[ONE]
    assert TWO not in watched.intake.refused


KEYS = [keys.member(str(n)) for keys in (ONE, TWO) for n in range(30)] + [ONE.owner, TWO.target, "/elastrain/x"]
CHANGES = st.lists(st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.integers(1, 3000))), max_size=60)


@given(st.lists(st.tuples(CHANGES, st.booleans()), max_size=20))
@examples(50)
def test_the_mirror_has_what_was_written_within_the_limits_after_any_history(history):
    watched, written = Watched(), {}
    for changes, drained in history:
        for key, size in changes:
            written[key] = size
            watched.write(key if size is None else kv(key, size))
        if drained:
            watched.drain()
    watched.drain()
    assert sum(len(k) + len(v) for k, v in watched.kept.items()) <= LIMITS.all
    for key, size in written.items():
        keys = JobKeys.of(key)
        if keys is None or (keys in watched.intake.refused and key != keys.owner) or size is None:
            assert key not in watched.kept
        elif not watched.intake.refused:
            most = LIMITS.member if "/members/" in key else LIMITS.owner if key == keys.owner else LIMITS.record
            assert len(watched.kept[key]) == (size if size <= most else 0)
