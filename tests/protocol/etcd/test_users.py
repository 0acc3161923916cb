"""Users with permissions on one prefix each: isolation between jobs, and logins that expire."""

from __future__ import annotations

import time

import pytest

from elastrain.api.keys import JobKeys
from elastrain.etcd import (
    EtcdClient,
    EtcdConfig,
    EtcdDenied,
    EtcdError,
    EtcdUnavailable,
    LeaseLost,
    Put,
    Range,
    Transaction,
)
from elastrain.etcd.watch import Watch
from elastrain_operator.users import EtcdUsers

MINE = JobKeys("team", "job", "uid-1")
THEIRS = JobKeys("team", "job", "uid-10")
"""Another job whose prefix begins with all but the last character of ours."""


@pytest.fixture
def users(secure_etcd):
    """Manages users as root."""
    with EtcdClient(secure_etcd.root) as client:
        yield EtcdUsers(client)


@pytest.fixture
def client_of(secure_etcd, users):
    """``client_of(keys)``: a client that logs in as the user of that job."""
    clients = []

    def connect(keys, server=secure_etcd, made=users):
        made.ensure(keys.uid, f"secret of {keys.uid}", keys.prefix)
        clients.append(EtcdClient(server.config(keys.uid, f"secret of {keys.uid}"), timeout=2.0))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


# ---- one job and another ---------------------------------------------------------------------------------------------
def test_a_job_does_everything_below_its_own_prefix(client_of):
    client = client_of(MINE)
    client.put(MINE.target, b"1")
    assert client.compare_and_swap(MINE.generation, b"1", expected_mod_revision=0)[0]
    assert client.commit(Transaction(((MINE.leader, 0),), ((MINE.leader, b"a"),)), "lead")
    assert [kv.key for kv in client.list_ranges((Range.prefix(MINE.prefix),))[0]] == [
        MINE.generation, MINE.leader, MINE.target,
    ]  # fmt: skip
    assert client.delete_prefix_if(MINE.prefix, MINE.target, b"1")


ELSEWHERE = {
    "read": lambda client: client.get(THEIRS.target),
    "list": lambda client: client.get_prefix(THEIRS.prefix),
    "list all": lambda client: client.get_prefix("/elastrain/"),
    "write": lambda client: client.put(THEIRS.target, b"x"),
    "write beside": lambda client: client.put("/elastrain", b"x"),
    "delete": lambda client: client.delete(THEIRS.target),
    "delete without the last /": lambda client: client.commit(
        Transaction((), (), deleted=Range.prefix("/elastrain/team/job/uid-1")), "delete"
    ),
    "lead": lambda client: client.create(THEIRS.leader, b"me"),
    "spy": lambda client: client.commit(
        Transaction(((THEIRS.leader, 0),), ((MINE.leader, b"a"),)), "spy by a condition"
    ),
    "fence": lambda client: client.commit(Transaction((), ((THEIRS.generation, b"9"),)), "fence"),
    "list users": lambda client: EtcdUsers(client).names(),
    "get rights": lambda client: EtcdUsers(client).ensure("uid-1", "mine", "/"),
    "remove a user": lambda client: EtcdUsers(client).remove("uid-10"),
}


def test_a_job_is_refused_everything_elsewhere(client_of):
    mine, theirs = client_of(MINE), client_of(THEIRS)
    theirs.put(THEIRS.target, b"1")
    for what, deed in ELSEWHERE.items():
        with pytest.raises(EtcdDenied, match=r"does not allow user 'uid-1' to .*permission denied"):
            deed(mine)
            pytest.fail(f"may {what}")
    assert theirs.get(THEIRS.target).value == b"1"


def test_a_job_cannot_watch_another_s_keys(client_of, eventually):
    states, events = [], []
    watch = client_of(MINE).watch_prefix(MINE.prefix, events.append)
    eventually(lambda: events, what="a watch of one's own")
    spy = client_of(MINE).watch_prefix(THEIRS.prefix, events.append, states.append)
    eventually(lambda: states, what="the refusal")
    assert not states[0].connected
    assert isinstance(states[0].error, EtcdDenied)
    client_of(THEIRS).put(THEIRS.target, b"1")
    assert [e for batch in events for e in batch.events] == []
    watch.close()
    spy.close()


def test_a_job_cannot_end_another_s_lease_that_holds_a_key(client_of):
    theirs, mine = client_of(THEIRS), client_of(MINE)
    lease = theirs.lease(60)
    lease.set(THEIRS.member("a"), b"1")
    assert lease.flush(5.0)
    with pytest.raises(EtcdDenied, match="end a lease"):
        mine.lease_revoke(lease.id)
    with pytest.raises(EtcdDenied):
        mine.put(MINE.target, b"1", lease=lease.id)
    assert theirs.get(THEIRS.member("a")).value == b"1"
    lease.close()


def test_leases_without_keys_have_no_owner(client_of):
    """etcd does not protect leases (see docs/operations.md): any user that knows the number of a lease may renew it,
    and end it while it holds no key."""
    theirs, mine = client_of(THEIRS), client_of(MINE)
    empty, held = theirs.lease_grant(60), theirs.lease_grant(60)
    theirs.put(THEIRS.member("a"), b"1", lease=held)
    assert mine.lease_keepalive(held, timeout=2.0) == 60
    mine.lease_revoke(empty)
    with pytest.raises(LeaseLost):
        theirs.lease_keepalive(empty, timeout=2.0)


# ---- logging in ------------------------------------------------------------------------------------------------------
def test_a_wrong_password_names_user_and_file(secure_etcd, users):
    users.ensure("trainer", "right", "/elastrain/")
    with (
        EtcdClient(secure_etcd.config("trainer", "wrong")) as client,
        pytest.raises(EtcdDenied, match=r"user 'trainer' to log in .*the password is from .*password-trainer"),
    ):
        client.get("/elastrain/x")


def test_a_password_file_that_is_gone_is_named(secure_etcd, users):
    users.ensure("trainer", "right", "/elastrain/")
    config = secure_etcd.config("trainer", "right")
    config.password_file.unlink()
    with EtcdClient(config) as client, pytest.raises(EtcdDenied, match=r"password-trainer' cannot be read: .*No such"):
        client.get("/elastrain/x")


def test_a_new_password_is_used_by_a_running_client(secure_etcd, users):
    users.ensure("trainer", "first", "/elastrain/")
    with EtcdClient(secure_etcd.config("trainer", "first")) as client:
        client.put("/elastrain/x", b"1")
        users.ensure("trainer", "second", "/elastrain/")
        secure_etcd.config("trainer", "second")  # writes the file
        assert client.get("/elastrain/x").value == b"1"


def test_expired_tokens_are_renewed_unseen(secure_etcd_factory, client_of, eventually):
    server = secure_etcd_factory("--auth-token-ttl", "1")
    with EtcdClient(server.root) as root:
        client = client_of(MINE, server, EtcdUsers(root))
        seen: list[bytes] = []
        watch = client.watch_prefix(
            MINE.prefix, lambda batch: seen.extend(e.kv.value for e in batch.events if isinstance(e, Put))
        )
        lease = client.lease(5)
        lease.set(MINE.member("a"), b"0")
        assert lease.flush(5.0)
        tokens, idle = {client.wire._token}, [time.monotonic()]

        def renewed() -> bool:
            """Use prolongs a token, and etcd checks for expired ones once a second: stay idle for longer than both."""
            if time.monotonic() - idle[-1] > 2.2:
                client.put(MINE.target, b"1")
                tokens.add(client.wire._token)
                idle.append(time.monotonic())
            return len(tokens) >= 3

        eventually(renewed, within=30.0, what="three tokens")
        watch.move((Range.prefix(MINE.members),))  # a new stream, with the present token
        lease.set(MINE.member("a"), b"2")
        eventually(lambda: seen[-1] == b"2", what="the watch to go on")
        lease.close()
        watch.close()


def test_a_watch_logs_in_again_if_its_token_has_expired(secure_etcd, client_of, eventually):
    client = client_of(MINE)
    seen: list[bytes] = []
    client.put(MINE.target, b"1")
    watch = client.watch_prefix(MINE.prefix, lambda batch: seen.extend(e.kv.value for e in batch.events))
    eventually(lambda: seen == [b"1"] and watch._stream is not None)  # the list comes before the stream
    client.wire._token = "expired.1"  # what it would be after the TTL
    with watch._lock:
        watch._stream.cancel()
    with EtcdClient(secure_etcd.root) as root:
        root.put(MINE.target, b"2")
    eventually(lambda: seen == [b"1", b"2"], what="the watch to go on with a token of its own")
    watch.close()


TOKEN_OF_ANOTHER_ETCD = "abcdefghijklmnop.1000000"
"""Of one with more entries, before it lost its data: this etcd keeps calls with it waiting."""


def test_a_call_without_an_answer_is_the_last_with_its_token(client_of):
    client = client_of(MINE)
    client.put(MINE.target, b"1")
    client.wire._token = TOKEN_OF_ANOTHER_ETCD
    client.timeout = 0.5
    with pytest.raises(EtcdUnavailable):
        client.get(MINE.target)
    assert client.get(MINE.target).value == b"1"


def test_a_watch_returns_if_etcd_has_lost_its_data_and_does_not_answer_its_token(client_of, eventually):
    client = client_of(MINE)
    client.put(MINE.target, b"1")
    seen: list[bytes] = []
    watch = Watch(
        client,
        (Range.prefix(MINE.prefix),),
        lambda batch: seen.extend(e.kv.value for e in batch.events),
        lambda state: None,
        progress_seconds=0.1,
        silence_seconds=0.5,
    )
    watch.start()
    eventually(lambda: seen == [b"1"] and watch._stream is not None)
    client.wire._token = TOKEN_OF_ANOTHER_ETCD
    with watch._lock:
        watch._stream.cancel()
    with EtcdClient(client.config) as other:
        other.put(MINE.target, b"2")
    eventually(lambda: seen == [b"1", b"2"], what="the watch to go on with a token of its own")
    watch.close()


# ---- making users ----------------------------------------------------------------------------------------------------
def test_every_operation_is_idempotent(secure_etcd, users):
    assert users.are_checked("root-secret")
    for _ in range(2):
        users.check("root-secret")
        users.ensure("a", "1", "/a/")
    assert sorted(users.names()) == ["a", "root"]
    for _ in range(2):
        users.remove("a")
    assert users.names() == ["root"]


def test_a_removed_user_is_refused_at_once(client_of, users):
    client = client_of(MINE)
    client.put(MINE.target, b"1")
    users.remove(MINE.uid)
    with pytest.raises(EtcdDenied, match="log in"):
        client.get(MINE.target)


def test_clients_without_a_token_log_in_if_authentication_is_enabled(etcd_factory, tmp_path):
    """An operator's first start: it creates users while authentication is off, then enables it for itself, too."""
    server = etcd_factory()
    path = tmp_path / "password"
    path.write_text("root-secret")
    config = EtcdConfig.of(server.endpoint, username="root", password_file=str(path))
    with EtcdClient(config) as client:
        users = EtcdUsers(client)
        client.put("/x", b"1")
        assert not users.are_checked("root-secret")
        users.ensure("a", "1", "/a/")
        users.check("root-secret")
        assert users.are_checked("root-secret")
        assert client.get("/x").value == b"1"
        assert sorted(users.names()) == ["a", "root"]
        with pytest.raises(EtcdDenied):
            users.are_checked("another")
        with pytest.raises(EtcdError):
            users.ensure("", "1", "/a/")
