"""Each promise of a watch, against a real etcd: complete, in order, without repetition, never silently dead."""

from __future__ import annotations

import shutil
import threading

import pytest

from elastrain.etcd import Batch, Delete, EtcdClient, EtcdConfig, EtcdDenied, EtcdUnavailable, Put, Range, WatchState
from elastrain.etcd import watch as watch_module
from elastrain.etcd.watch import Watch
from elastrain.etcd.wire import messages


class Recorder:
    """The reports of a watch, and the resulting keys."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.states: list[bool] = []
        self.keys: dict[str, bytes] = {}
        self.revisions: list[int] = []

    def on_events(self, batch: Batch) -> None:
        for event in batch.events:
            if isinstance(event, Put):
                self.keys[event.kv.key] = event.kv.value
                if not batch.snapshot:
                    self.revisions.append(event.kv.mod_revision)
            else:
                assert isinstance(event, Delete)
                del self.keys[event.key]
                if not batch.snapshot:
                    self.revisions.append(event.revision)
        self.batches.append(batch)

    def on_state(self, state: WatchState) -> None:
        self.states.append(state.connected)


@pytest.fixture
def heard():
    return Recorder()


def test_existing_keys_come_first_then_every_change_in_order(client, job_keys, heard, eventually):
    client.put(job_keys.member("a"), b"0")
    watch = client.watch_prefix(job_keys.prefix, heard.on_events, heard.on_state)
    eventually(lambda: heard.batches, what="the snapshot")
    assert heard.batches[0].snapshot
    for i in range(50):
        client.put(job_keys.member("a"), str(i).encode())
    client.delete(job_keys.member("a"))
    eventually(lambda: len(heard.revisions) == 51, what="51 changes")
    assert heard.revisions == sorted(set(heard.revisions)), "changes come once, in order"
    assert heard.keys == {}
    watch.close()


def test_nothing_is_missed_or_repeated_if_etcd_restarts(etcd_factory, heard, eventually):
    server = etcd_factory()
    with EtcdClient(EtcdConfig.of(server.endpoint), timeout=1.0) as client:
        watch = client.watch_prefix("/x/", heard.on_events, heard.on_state)
        client.put("/x/a", b"1")
        eventually(lambda: heard.keys == {"/x/a": b"1"})
        server.kill()
        eventually(lambda: heard.states == [True, False], what="the outage to be reported")
        server.start()
        with EtcdClient(EtcdConfig.of(server.endpoint)) as other:
            other.put("/x/b", b"2")
            other.delete("/x/a")
        eventually(lambda: heard.keys == {"/x/b": b"2"}, within=30.0, what="the changes after the restart")
        assert heard.states == [True, False, True]
        assert heard.revisions == sorted(set(heard.revisions)), "changes come once, in order"
        watch.close()


def test_deletions_are_reported_if_their_history_was_compacted(etcd_factory, heard, eventually):
    server = etcd_factory()
    with EtcdClient(EtcdConfig.of(server.endpoint), timeout=1.0) as client:
        client.put("/x/gone", b"1")
        client.put("/x/same", b"1")
        client.put("/x/new", b"1")
        blocked, go_on = threading.Event(), threading.Event()

        def slow(batch: Batch) -> None:
            heard.on_events(batch)
            blocked.set()
            assert go_on.wait(20)

        watch = client.watch_prefix("/x/", slow, heard.on_state)
        assert blocked.wait(5)  # between its snapshot and the first changes
        client.delete("/x/gone")
        revision = client.put("/x/new", b"2")
        compaction = messages.CompactionRequest(revision=revision, physical=True)
        client.wire.unary("kv", "Compact", compaction, timeout=5, what="compact")
        go_on.set()
        eventually(lambda: len(heard.batches) == 2, what="a second snapshot")
        again = heard.batches[1]
        assert again.snapshot
        assert sorted(e.key if isinstance(e, Delete) else e.kv.key for e in again.events) == ["/x/gone", "/x/new"]
        client.put("/x/same", b"3")
        eventually(lambda: heard.keys == {"/x/same": b"3", "/x/new": b"2"}, what="changes after the compaction")
        watch.close()


def test_the_difference_is_reported_if_etcd_lost_its_data(etcd_factory, heard, eventually):
    server = etcd_factory()
    with EtcdClient(EtcdConfig.of(server.endpoint), timeout=1.0) as client:
        watch = client.watch_prefix("/x/", heard.on_events, heard.on_state)
        for i in range(20):
            client.put(f"/x/{i}", b"1")
        eventually(lambda: len(heard.keys) == 20)
        server.kill()
        shutil.rmtree(server.data_dir / "data")
        server.start()
        eventually(lambda: heard.keys == {}, within=30.0, what="20 deletions")
        with EtcdClient(EtcdConfig.of(server.endpoint)) as other:
            other.put("/x/3", b"2")
        eventually(lambda: heard.keys == {"/x/3": b"2"}, within=30.0, what="changes in the new history")
        watch.close()


def test_the_difference_is_reported_if_a_restored_etcd_reached_the_watchs_revision(etcd_factory, heard, eventually):
    server = etcd_factory()
    saved = server.data_dir / "saved"
    with EtcdClient(EtcdConfig.of(server.endpoint), timeout=1.0) as client:
        client.put("/x/a", b"1")
        server.kill()
        shutil.copytree(server.data_dir / "data", saved)
        server.start()
        away, go_on = threading.Event(), threading.Event()

        def slow(batch: Batch) -> None:
            heard.on_events(batch)
            if heard.keys.get("/x/a") == b"2":
                away.set()
                assert go_on.wait(60)

        watch = client.watch_prefix("/x/", slow, heard.on_state)
        eventually(lambda: heard.keys == {"/x/a": b"1"})
        last = client.put("/x/a", b"2")
        assert away.wait(5)
        server.kill()
        shutil.rmtree(server.data_dir / "data")
        shutil.move(saved, server.data_dir / "data")
        server.start()
        with EtcdClient(EtcdConfig.of(server.endpoint)) as other:
            assert other.put("/x/a", b"of the restored etcd") == last
            other.put("/x/b", b"1")
        go_on.set()
        restored = {"/x/a": b"of the restored etcd", "/x/b": b"1"}
        eventually(lambda: heard.keys == restored, within=10.0, what="the records of the restored etcd")
        watch.close()


def test_a_watch_is_renewed_if_etcd_falls_silent(etcd_factory, heard, eventually):
    server = etcd_factory()
    with EtcdClient(EtcdConfig.of(server.endpoint), timeout=1.0) as client:
        watch = Watch(
            client, (Range.prefix("/x/"),), heard.on_events, heard.on_state, progress_seconds=0.2, silence_seconds=1.0
        )
        watch.start()
        eventually(lambda: heard.states == [True])
        server.pause()
        eventually(lambda: heard.states == [True, False], within=30.0, what="the silence to be noticed")
        server.resume()
        client.put("/x/a", b"1")
        eventually(lambda: heard.keys == {"/x/a": b"1"}, within=30.0, what="changes after the silence")
        watch.close()


def test_a_quiet_watch_stays_if_etcd_lives(etcd, client, job_keys, heard, eventually):
    watch = Watch(
        client,
        (Range.prefix(job_keys.prefix),),
        heard.on_events,
        heard.on_state,
        progress_seconds=0.1,
        silence_seconds=1.5,
    )
    watch.start()
    eventually(lambda: heard.states == [True])
    done = threading.Event()
    done.wait(3.5)  # more than twice the tolerated silence
    assert heard.states == [True], "etcd's signs of life must count"
    watch.close()


def test_changes_are_reported_again_if_a_callback_raises(client, job_keys, heard, eventually, monkeypatch):
    monkeypatch.setattr(watch_module, "_DENIED_RETRY_SECONDS", 0.05)
    failing: list[str] = ["the list", "a change", "a deletion"]

    def fails_once(batch: Batch) -> None:
        if batch.events and failing:
            raise RuntimeError(failing.pop(0))
        heard.on_events(batch)

    client.put(job_keys.member("a"), b"1")
    watch = client.watch_prefix(job_keys.prefix, fails_once, heard.on_state)
    eventually(lambda: heard.keys == {job_keys.member("a"): b"1"}, what="the list, again")
    client.put(job_keys.target, b"1")
    eventually(lambda: job_keys.target in heard.keys, what="the change, again")
    client.delete(job_keys.target)
    eventually(lambda: job_keys.target not in heard.keys and not failing, what="the deletion, again")
    assert heard.states == [True, *[False, True] * 3]
    watch.close()


def test_another_kind_of_failure_is_reported_in_an_outage():
    errors = []
    watch = Watch(None, (), lambda _: None, lambda state: errors.append(state.error))
    for error in (EtcdUnavailable("e", "x", "1"), EtcdUnavailable("e", "x", "2"), EtcdDenied("e", "u", "x", "3"), None):
        watch._report(WatchState(connected=error is None, error=error))
    assert [str(e) for e in errors if e] == [str(EtcdUnavailable("e", "x", "1")), str(EtcdDenied("e", "u", "x", "3"))]


def test_a_watch_is_disconnected_and_begins_anew_if_a_bug_meets_its_answer(
    client, job_keys, heard, eventually, monkeypatch
):
    monkeypatch.setattr(watch_module, "_DENIED_RETRY_SECONDS", 0.05)
    faults = [ValueError("a bug in the list"), KeyError("a bug in a change")]

    def sift(kv):
        if kv.value == b"bad" and faults:
            raise faults.pop()
        return kv

    client.put(job_keys.member("a"), b"bad")
    watch = client.watch_prefix(job_keys.prefix, heard.on_events, heard.on_state, sift)
    eventually(lambda: heard.keys == {job_keys.member("a"): b"bad"}, what="the list, after its bugs")
    faults.append(TypeError("another one"))
    client.put(job_keys.member("b"), b"bad")
    eventually(lambda: job_keys.member("b") in heard.keys, what="the change, by another list")
    assert heard.states == [False, True, False, True]
    watch.close()


def test_a_watch_starts_if_etcd_starts_later(etcd_factory, heard, eventually):
    server = etcd_factory()
    server.kill()
    with EtcdClient(EtcdConfig.of(server.endpoint), timeout=1.0) as client:
        watch = client.watch_prefix("/x/", heard.on_events, heard.on_state)
        eventually(lambda: heard.states == [False])
        server.start()
        eventually(lambda: heard.states == [False, True] and heard.batches, within=30.0)
        watch.close()


def test_close_returns_if_etcd_is_away(etcd_factory, heard, eventually):
    server = etcd_factory()
    with EtcdClient(EtcdConfig.of(server.endpoint), timeout=1.0) as client:
        watch = client.watch_prefix("/x/", heard.on_events, heard.on_state)
        eventually(lambda: heard.states == [True])
        server.pause()
        watch.close()
        assert not any(t.name == "etcd-watch" and t.is_alive() for t in threading.enumerate())
