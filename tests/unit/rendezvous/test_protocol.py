"""A job of many members over an etcd in memory: watches, reads and writes, and their number. No I/O, no waiting."""

from __future__ import annotations

import pytest

from elastrain.api.keys import JobKeys
from elastrain.api.records import Generation, GenerationMember, Leader, Member, Phase, Target, roster
from elastrain.etcd import Batch, Delete, EtcdUnavailable, KeyValue, Put, Range
from elastrain.rendezvous.decide import Propose
from elastrain.rendezvous.election import Candidate, Claim, elect
from elastrain.rendezvous.protocol import LONGEST_REST, MemberProtocol, rest_after

KEYS = JobKeys("test", "job", "1")
TTL = 5
AWAY = EtcdUnavailable("etcd:2379", "watch", "away")


def covers(watched: Range, key: str) -> bool:
    return watched.key <= key < watched.end if watched.end else key == watched.key


class Etcd:
    """Keys, revisions and watches: the part of etcd that the protocol uses."""

    def __init__(self) -> None:
        self.revision = 1
        self.keys: dict[str, KeyValue] = {}
        self.writes = 0
        self.watches: dict[str, tuple[MemberProtocol, Member, tuple[Range, ...]]] = {}
        self.events = 0

    def write(self, puts: dict[str, tuple[bytes, int]], deleted: tuple[str, ...] = ()) -> None:
        self.revision += 1
        self.writes += 1
        changes: list[Put | Delete] = []
        for key, (value, lease) in puts.items():
            born = self.keys[key].create_revision if key in self.keys else self.revision
            self.keys[key] = KeyValue(key, value, born, self.revision, lease)
            changes.append(Put(self.keys[key]))
        for key in deleted:
            if self.keys.pop(key, None) is not None:
                changes.append(Delete(key, self.revision))
        for seat, own, ranges in list(self.watches.values()):
            news = tuple(c for c in changes if self._wanted(c, ranges))
            self.events += len(news)
            if news:
                seat.take(Batch(news, self.revision), own, 0.0)

    def _wanted(self, change: Put | Delete, ranges: tuple[Range, ...]) -> bool:
        key = change.kv.key if isinstance(change, Put) else change.key
        return any(
            covers(r, key) and not r.listed_only and not (r.deletes_only and isinstance(change, Put)) for r in ranges
        )

    def watch(self, own: Member, seat: MemberProtocol) -> None:
        self.watches[own.id] = (seat, own, seat.scope)
        held = tuple(Put(kv) for key, kv in sorted(self.keys.items()) if any(covers(r, key) for r in seat.scope))
        seat.take(Batch(held, self.revision, snapshot=True, ranges=seat.scope), own, 0.0)


class Job:
    def __init__(self, size: int) -> None:
        self.etcd = Etcd()
        self.now = 0.0
        self.seats: dict[str, MemberProtocol] = {}
        self.records: dict[str, Member] = {}
        most = size + roster.INLINE  # so that members do not see each other
        self.etcd.write({KEYS.target: (Target(min=1, max=most, desired=size).encode(), 0)})
        for i in range(size):
            self.join(f"w{i:04d}")

    def join(self, worker: str) -> None:
        record = Member(id=f"{worker}.x", worker=worker, address="h", phase=Phase.READY, store_port=1)
        seat = MemberProtocol(KEYS, record, lease_ttl=TTL)
        seat.contact.watch_reported(None, True, 0.0)
        self.seats[record.id], self.records[record.id] = seat, record
        self.etcd.write({KEYS.member(record.id): (record.encode(), self.lease(record.id))})
        self.etcd.watch(record, seat)

    @staticmethod
    def lease(member: str) -> int:
        return 1 + int(member[1:5])

    def die(self, *members: str) -> None:
        for member in members:
            del self.seats[member], self.etcd.watches[member]
            held = [k for k, kv in self.etcd.keys.items() if kv.lease == self.lease(member)]
            self.etcd.write({}, tuple(held))

    def settle(self, seconds: float = 1.5) -> None:
        """All members act until none has an action left, and time passes."""
        end = self.now + seconds
        while self.now < end:
            if not sum(self.act(m) for m in list(self.seats)):
                self.now += 0.1

    def act(self, member: str) -> bool:
        seat, record = self.seats[member], self.records[member]
        seat.look(record, self.now)
        todo = seat.next(record, self.lease(member), self.now)
        assert todo is not None
        if todo.part is not None:
            seat.views.found(record.id, todo.part, self.etcd.keys.get(todo.part))
        if todo.transaction is not None:
            seat.tried(todo.transaction, self.now)
            if all(self.revision_of(key) == expected for key, expected in todo.transaction.unchanged):
                gone = todo.transaction.deleted
                doomed = tuple(k for k in self.etcd.keys if gone is not None and covers(gone, k))
                self.etcd.write({k: (v, todo.transaction.lease) for k, v in todo.transaction.puts}, doomed)
        if seat.scope_changed(record):
            self.etcd.watch(record, seat)
            return True
        return todo.part is not None or todo.transaction is not None

    def revision_of(self, key: str) -> int:
        return self.etcd.keys[key].mod_revision if key in self.etcd.keys else 0

    def known(self) -> set[tuple[int, int]]:
        """Number and size of the newest generation, from every member's view."""
        views = [s.look(self.records[m], self.now) for m, s in self.seats.items()]
        return {(v.generation.number, v.generation.size) for v in views if v.generation}

    def offsets(self) -> list[int]:
        """Rank offsets from each member's own place."""
        found = []
        for member, seat in self.seats.items():
            generation = seat.views.generation
            assert generation is not None
            place = generation.member(member)
            assert place is not None, f"{member} does not know its place"
            found.append(place.rank_offset)
        return sorted(found)


@pytest.mark.parametrize("size", [3, 64, 65, 200])
def test_every_member_knows_its_place_for_any_size(size):
    job = Job(size)
    job.settle()
    assert job.known() == {(1, size)}
    assert job.offsets() == list(range(size))
    assert [s.views.complete for s in job.seats.values()].count(True) == 1


@pytest.mark.parametrize("size", [65, 200])
def test_one_lost_member_costs_two_writes_and_one_event_each_for_any_size(size):
    job = Job(size)
    job.settle()
    writes, events = job.etcd.writes, job.etcd.events
    job.die("w0010.x")
    job.settle()
    assert job.known() == {(2, size - 1)}
    assert job.etcd.writes - writes == 2, "the vanished key, and the next generation"
    parts = roster.parts_of(size)
    assert job.etcd.events - events <= (size - 1) + 1 + parts, "one each; the leader sees the key and the parts, too"
    assert job.offsets() == list(range(size - 1))


def test_the_next_members_take_over_if_the_leader_and_others_die_at_once():
    job = Job(80)
    job.settle()
    job.die("w0000.x", "w0001.x", "w0002.x", "w0003.x")
    job.settle()
    ((_, size),) = job.known()
    assert size == 76
    assert job.offsets() == list(range(76))


def test_a_new_leader_knows_earlier_generations(size=70):
    job = Job(size)
    job.settle()
    job.die("w0030.x")
    job.settle()
    job.die("w0000.x")
    job.settle()
    leader = next(s for s in job.seats.values() if s.views.complete)
    view = leader.look(job.records["w0001.x"], job.now)
    assert [g.number for g in view.generations] == [1, 2, 3]
    assert view.generation is not None and view.generation.ended == (1, 2)


def test_a_proposal_has_no_effect_if_another_member_leads_meanwhile():
    job = Job(3)
    job.settle()
    (leader,) = (m for m, s in job.seats.items() if s.views.complete)
    job.die("w0002.x")
    record, seat = job.records[leader], job.seats[leader]
    seat.look(record, job.now)
    todo = seat.next(record, job.lease(leader), job.now)
    assert todo is not None and isinstance(todo.action, Propose) and todo.transaction is not None
    usurper = Leader(member="w0001.x", worker="w0001", address="h")
    job.etcd.write({KEYS.leader: (usurper.encode(), job.lease("w0001.x"))})
    assert not all(job.revision_of(key) == expected for key, expected in todo.transaction.unchanged)


def test_a_member_that_was_lost_before_an_outage_stays_lost_in_it():
    job = Job(3)
    job.settle()
    (leader,) = (m for m, s in job.seats.items() if s.views.complete)
    job.die("w0002.x")
    job.seats[leader].contact.watch_reported(AWAY, False, job.now)
    assert job.seats[leader].look(job.records[leader], job.now).lost == ("w0002.x",)


def test_a_leader_that_never_saw_the_record_of_a_lost_member_knows_its_part_of_the_state():
    """Else it would give the place in a group twice: to that member, which may return, and to its replacement."""
    job, part = Job(2), {"group": 3, "place": 1, "group_size": 2}
    record = Member(id="w0001.x", worker="w0001", address="h", phase=Phase.READY, store_port=1, **part)
    views = job.seats["w0000.x"].views
    place = GenerationMember(id=record.id, worker="w0001", address="h", store_port=1, rank_offset=0, part=record.part)
    views.expect(Generation.decode(Generation(number=1, members=(place,), reason="Start", leader="").encode()))
    expected = views.missing["w0001.x"].record
    assert {name: getattr(expected, name) for name in part} == part
    assert expected.part == record.part
    assert Member(id="w.x", worker="w", address="h").part is None


def test_members_of_old_generations_are_forgotten():
    job = Job(3)
    job.settle()
    for i in range(20):
        job.join(f"w{i + 10:04d}")
        job.etcd.write({KEYS.target: (Target(min=1, max=500, desired=4 + i).encode(), 0)})
        leader = next(m for m, s in job.seats.items() if s.views.complete)
        job.settle(0.2)
        number = next(iter(job.known()))[0]
        first = job.records[leader] = job.records[leader].model_copy(update={"generation": number})
        job.etcd.write({KEYS.member(leader): (first.encode(), job.lease(leader))})
        job.settle(0.2)
    kept = {k for k in job.etcd.keys if k.startswith(KEYS.rosters)}
    assert next(iter(job.known()))[0] > 2 * roster.KEPT
    assert len(kept) == roster.KEPT


def test_changes_of_members_may_wait_until_the_missing_ones_are_ready():
    job = Job(3)
    job.etcd.write({KEYS.target: (Target(min=10, max=100, desired=10).encode(), 0)})
    job.settle(0.2)
    leader = next(s for s in job.seats.values() if s.views.complete)
    for i in range(3, 9):
        job.join(f"w{i:04d}")
        assert leader.may_wait(job.now)
    job.join("w0009")
    assert not leader.may_wait(job.now)


def test_changes_of_other_records_never_wait():
    job = Job(3)
    job.etcd.write({KEYS.target: (Target(min=10, max=100, desired=10).encode(), 0)})
    job.settle(0.2)
    leader = next(s for s in job.seats.values() if s.views.complete)
    job.etcd.write({KEYS.target: (Target(min=1, max=100, desired=10).encode(), 0)})
    assert not leader.may_wait(job.now)


def test_evaluations_take_a_fifth_of_the_time_at_most_and_are_postponed_briefly():
    assert rest_after(0.01) == pytest.approx(0.05)
    assert rest_after(10.0) == LONGEST_REST


# ---- the leader's place --------------------------------------------------------------------------------------------
def candidate(**fields: object) -> Candidate:
    base = {"member": "a", "lease": 1, "leader": None, "leader_lease": 0, "mod_revision": 0}
    return Candidate(**{**base, "since": None, "place": None, **fields})


def test_a_key_that_was_never_held_is_taken_at_once():
    assert elect(candidate(), 5.0) == Claim(0)


def test_a_vacant_key_is_left_to_members_before_this_one_for_a_moment():
    assert elect(candidate(since=5.0, place=1), 5.0) == Claim(0)
    due = elect(candidate(since=5.0, place=4), 5.0)
    assert isinstance(due, float) and 5.0 < due < 6.0
    assert elect(candidate(since=5.0, place=4), due) == Claim(0)


def test_a_held_key_is_not_claimed():
    assert elect(candidate(leader="b", leader_lease=2, mod_revision=7), 5.0) is None
    assert elect(candidate(leader="a", leader_lease=1, mod_revision=7), 5.0) is None


def test_a_leader_rewrites_the_key_if_its_ranks_were_restarted():
    assert elect(candidate(leader="a.old", leader_lease=1, mod_revision=7), 5.0) == Claim(7)


def test_no_member_leads_without_a_lease():
    assert elect(candidate(lease=0), 5.0) is None


# ---- large generations ---------------------------------------------------------------------------------------------
def test_a_large_generation_is_whole_again_when_its_parts_are_joined(make_generation):
    generation: Generation = make_generation(500)
    short = roster.header(generation)
    assert (len(short.members), short.size, short.world_size, short.store) == (0, 500, 500, generation.store)
    assert len(short.encode()) < 1000
    assert roster.whole(short, roster.join(roster.split(generation))) == generation


def test_a_small_generation_is_its_own_header(make_generation):
    generation = make_generation(roster.INLINE)
    assert roster.header(generation) is generation
    assert len(roster.split(generation)) == 1


# ---- secrets -------------------------------------------------------------------------------------------------------
def written(job: Job) -> Generation:
    """The newest generation's record."""
    return Generation.decode(job.etcd.keys[KEYS.generation].value)


@pytest.mark.parametrize("size", [2, roster.INLINE + 1])
def test_each_generation_has_a_secret_of_its_own(size: int):
    job = Job(size)
    job.settle(5)
    first = written(job)
    job.die(*list(job.seats)[:1])
    job.settle(5)
    second = written(job)
    assert second.number > first.number and second.secret != first.secret
    assert all(len(bytes.fromhex(g.secret)) == 32 for g in (first, second))


def test_jobs_share_no_secret():
    jobs = Job(2), Job(2)
    for job in jobs:
        job.settle(5)
    assert written(jobs[0]).number == written(jobs[1]).number and written(jobs[0]).secret != written(jobs[1]).secret


def test_no_text_about_a_generation_contains_its_secret():
    g = Generation(number=1, reason="Start", leader="a.0", secret="5e" * 32)
    assert g.secret not in repr(g) + str(g)
    with pytest.raises(ValueError, match="number") as error:
        Generation.decode(g.encode().replace(b'"number":1', b'"number":0'))
    assert g.secret not in str(error.value)
