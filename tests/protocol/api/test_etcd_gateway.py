"""The gateway before the chart's etcd: of etcd's calls, it passes on those that need a user's rights, and no others."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from chart_etcd import ChartEtcd, EtcdMember, write_keys
from charts import Render
from conditions import eventually
from elastrain.etcd import Batch, EtcdClient, EtcdConfig, Put
from elastrain.etcd.protocol import Service, messages
from elastrain_etcd.maintenance import EtcdMaintenance
from elastrain_operator.users import EtcdUsers

SETTINGS = ("etcd.replicas=1",)


@contextmanager
def running(rendered: Render, home: Path) -> Iterator[EtcdMember]:
    """A member with its gateway, and a job's user in it."""
    etcd = ChartEtcd(rendered(*SETTINGS), home)
    try:
        etcd.start()
        with EtcdClient(etcd.config()) as client:
            EtcdUsers(client).ensure("job", "secret", "/elastrain/a/")
        yield etcd.members[0]
    finally:
        etcd.stop()


@pytest.fixture(scope="module")
def member(rendered: Render, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMember]:
    """One for all tests that leave it as it was."""
    with running(rendered, tmp_path_factory.mktemp("etcd")) as one:
        yield one


@contextmanager
def stub(member: EtcdMember) -> Iterator[Callable[..., Any]]:
    """``call(service, method, request, user="job")``: through the gateway; the answer of etcd, or its error."""
    ca = (member.etcd.home / "ca.crt").read_bytes()
    with grpc.secure_channel(f"127.0.0.1:{member.client}", grpc.ssl_channel_credentials(ca)) as channel:

        def call(service: str, method: str, request: Any, user: str = "") -> Any:
            metadata = []
            if user:
                login = messages.AuthenticateRequest(name=user, password="secret")
                metadata = [("token", Service(channel, "Auth").Authenticate(login, timeout=5).token)]
            request = iter([request]) if method in ("LeaseKeepAlive", "Watch") else request
            answer = getattr(Service(channel, service), method)(request, timeout=5, metadata=metadata)
            return next(answer) if hasattr(answer, "__next__") else answer

        yield call


UNGUARDED: dict[str, tuple[Any, Any]] = {
    "Alarm": ("Maintenance", messages.AlarmRequest(action=1, memberID=7, alarm=1)),
    "Status": ("Maintenance", messages.StatusRequest()),
    "Hash": ("Maintenance", messages.HashRequest()),
    "Snapshot": ("Maintenance", messages.SnapshotRequest()),
    "Defragment": ("Maintenance", messages.DefragmentRequest()),
    "Compact": ("KV", messages.CompactionRequest(revision=1)),
    "MemberList": ("Cluster", messages.MemberListRequest()),
    "MemberAdd": ("Cluster", messages.MemberAddRequest(peerURLs=["http://127.0.0.1:1"])),
}
"""Calls that members and the operator do not make; etcd serves some of them to any client."""


@pytest.mark.parametrize("user", ["", "job", "root"])
@pytest.mark.parametrize("method", UNGUARDED)
def test_a_call_that_stops_or_spies_on_other_jobs_is_refused(member: EtcdMember, method: str, user: str) -> None:
    service, request = UNGUARDED[method]
    with stub(member) as call, pytest.raises(grpc.RpcError) as refused:
        call(service, method, request, user)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


GUARDED: dict[str, tuple[Any, Any]] = {
    "Range": ("KV", messages.RangeRequest(key=b"/elastrain/a/x")),
    "Put": ("KV", messages.PutRequest(key=b"/elastrain/a/x", value=b"1")),
    "DeleteRange": ("KV", messages.DeleteRangeRequest(key=b"/elastrain/a/x")),
    "Txn": ("KV", messages.TxnRequest()),
    "LeaseGrant": ("Lease", messages.LeaseGrantRequest(TTL=1)),
    "LeaseTimeToLive": ("Lease", messages.LeaseTimeToLiveRequest(ID=1)),
    "LeaseKeepAlive": ("Lease", messages.LeaseKeepAliveRequest(ID=1)),
    "Watch": ("Watch", messages.WatchRequest(create_request={"key": b"/elastrain/a/x"})),
}


@pytest.mark.parametrize("method", GUARDED)
def test_a_users_calls_pass_and_a_strangers_do_not(member: EtcdMember, method: str) -> None:
    service, request = GUARDED[method]
    with stub(member) as call:
        call(service, method, request, "job")
        with pytest.raises(grpc.RpcError) as refused:
            call(service, method, request)
    assert refused.value.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.CANCELLED)


def test_users_are_managed_by_root_only(member: EtcdMember) -> None:
    request = messages.AuthUserAddRequest(name="mine", password="x")
    with stub(member) as call:
        with pytest.raises(grpc.RpcError):
            call("Auth", "UserAdd", request, "job")
        call("Auth", "UserAdd", request, "root")


def test_a_client_that_floods_is_refused(rendered: Render, tmp_path: Path) -> None:
    request = messages.PutRequest(key=b"/elastrain/a/flood", value=bytes(1 << 20))
    with running(rendered, tmp_path) as own, stub(own) as call, pytest.raises(grpc.RpcError) as refused:
        for _ in range(60):
            call("KV", "Put", request, "job")
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


# ---- what it does beside that ----------------------------------------------------------------------------------------
@contextmanager
def inside(member: EtcdMember) -> Iterator[EtcdClient]:
    """As a process in the member's pod."""
    home = member.etcd.home
    endpoint, password = f"127.0.0.1:{member.inner}", str(home / "password")
    config = EtcdConfig.of(endpoint, ca=str(home / "ca.crt"), username="root", password_file=password)
    with EtcdClient(config) as client:
        yield client


def test_an_alarm_that_the_size_does_not_justify_is_disarmed(member: EtcdMember) -> None:
    with inside(member) as client:
        maintenance = EtcdMaintenance(client)
        for number in (maintenance.status().member, 7):
            raised = messages.AlarmRequest(action=1, memberID=number, alarm=1)
            client.wire.unary("maintenance", "Alarm", raised, timeout=5, what="raise an alarm")
        assert maintenance.alarms()
        eventually(lambda: maintenance.alarms() == [], within=30, what="the alarms to be disarmed")


def test_a_renewed_certificate_is_presented_and_no_stream_is_cut(rendered: Render, tmp_path: Path) -> None:
    with running(rendered, tmp_path) as own, EtcdClient(own.etcd.config()) as before:
        batches: list[Batch] = []
        states: list[Any] = []
        watch = before.watch_prefix("/elastrain/a/", batches.append, states.append)
        eventually(lambda: bool(batches), what="the watch to list")
        shown = presented(own)
        write_keys(rendered(*SETTINGS, *SETTINGS), own.etcd.home)  # rendered anew
        eventually(lambda: presented(own) != shown, within=30, what="the new certificate")
        with EtcdClient(own.etcd.config()) as client:
            client.put("/elastrain/a/x", b"1")
        eventually(lambda: any(isinstance(e, Put) for b in batches for e in b.events), what="the watch to report")
        assert all(state.connected for state in states)
        watch.close()


def presented(member: EtcdMember) -> str:
    return ssl.get_server_certificate(("127.0.0.1", member.client))


# ---- clients without a request, other paths, and leases --------------------------------------------------------------
def hello() -> bytes:
    """The first message of a client's TLS."""
    sent, context = ssl.MemoryBIO(), ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    return sent.read()


def secured(member: EtcdMember) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=str(member.etcd.home / "ca.crt"))
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(socket.create_connection(("127.0.0.1", member.client)), server_hostname="127.0.0.1")


@pytest.mark.parametrize("stage", ["nothing", "a half of its hello", "hello", "TLS"])
def test_a_client_without_a_request_is_soon_disconnected(member: EtcdMember, stage: str) -> None:
    with secured(member) if stage == "TLS" else socket.create_connection(("127.0.0.1", member.client)) as client:
        if stage in ("hello", "a half of its hello"):
            client.sendall(hello()[: None if stage == "hello" else 100])
        client.settimeout(15)
        with contextlib.suppress(ConnectionError):
            while client.recv(4096):
                pass


@pytest.mark.parametrize(
    "path",
    ["/etcdserverpb.Auth/../etcdserverpb.Maintenance/Alarm", "/etcdserverpb.Auth/AuthDisable", "/v3/kv/put"],
)
def test_a_path_that_is_no_call_of_a_client_does_not_reach_etcd(member: EtcdMember, path: str) -> None:
    ca = (member.etcd.home / "ca.crt").read_bytes()
    with grpc.secure_channel(f"127.0.0.1:{member.client}", grpc.ssl_channel_credentials(ca)) as channel:
        call = channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=5, metadata=[("token", "x.1")])
    assert refused.value.details() == "etcdserver: permission denied: the gateway serves no such call"


LEASES = {
    "ten years": b"\x08\x80\xce\xcc\x96\x01", "no time": b"", "a number of its own": b"\x08\x05\x10\x07",
    "a second time": b"\x08\x05\x08\x80\xce\xcc\x96\x01", "an unknown field first": b"\x78\x01\x08\x80\xce\xcc\x96\x01",
    "70 minutes": b"\x08\xe8\x20",
}  # fmt: skip


@pytest.mark.parametrize("request_", LEASES.values(), ids=LEASES)
def test_a_lease_of_another_time_than_an_hour_is_refused(member: EtcdMember, request_: bytes) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        granted(member, request_)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    granted(member, b"\x08\x90\x1c")  # 3600 s


def test_a_client_that_asks_for_very_many_leases_is_refused(rendered: Render, tmp_path: Path) -> None:
    with running(rendered, tmp_path) as own:
        with pytest.raises(grpc.RpcError) as refused:
            granted(own, b"\x08\x05", times=200)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with inside(own) as client:
            assert client.lease_grant(5)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Of HTTP/2."""
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def streams_answered(heard: bytes) -> set[int]:
    """Streams of the headers among these frames."""
    found, at = set(), 0
    while at + 9 <= len(heard):
        if heard[at + 3] == 1:
            found.add(int.from_bytes(heard[at + 5 : at + 9]))
        at += 9 + int.from_bytes(heard[at : at + 3])
    return found


def test_leases_whose_requests_drip_hold_up_no_other_client_and_end(member: EtcdMember) -> None:
    """A byte of each whenever nothing else comes."""
    fields = {b":path": GRANT.encode(), b"token": b"x.1", b"content-type": b"application/grpc", b"te": b"trailers"}
    head = b"\x83\x87" + b"".join(b"\0%c%b%c%b" % (len(k), k, len(v), v) for k, v in fields.items())
    streams, heard = set(range(1, 100, 2)), b""
    with secured(member) as slow:
        slow.settimeout(0.3)
        slow.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0))
        slow.sendall(b"".join(frame(1, 4, stream, head) for stream in streams))
        granted(member, b"\x08\x05", times=5)

        def ended() -> bool:
            nonlocal heard
            slow.sendall(b"".join(frame(0, 0, stream, b"\0") for stream in streams - streams_answered(heard)))
            with contextlib.suppress(TimeoutError):
                heard += slow.recv(1 << 16)
            return streams_answered(heard) == streams

        eventually(ended, within=10, what="each slow request to be answered")


GRANT = "/etcdserverpb.Lease/LeaseGrant"


def granted(member: EtcdMember, request: bytes, times: int = 1) -> None:
    ca = (member.etcd.home / "ca.crt").read_bytes()
    with grpc.secure_channel(f"127.0.0.1:{member.client}", grpc.ssl_channel_credentials(ca)) as channel:
        login = messages.AuthenticateRequest(name="job", password="secret")
        token = Service(channel, "Auth").Authenticate(login, timeout=5).token
        grant = channel.unary_unary(GRANT, request_serializer=bytes, response_deserializer=bytes)
        for _ in range(times):
            grant(request, timeout=5, metadata=[("token", token)])
