"""etcd's messages and calls, made from its own descriptors."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from hypothesis import given
from hypothesis import strategies as st

from elastrain.etcd.protocol import Service, messages
from elastrain.etcd.wire import range_end


def test_a_message_reads_what_it_has_written():
    compare = {"key": b"a", "target": "MOD", "mod_revision": 7}
    request = messages.TxnRequest(compare=[compare], success=[{"request_put": {"key": b"a", "value": b"1"}}])
    read = messages.TxnRequest.FromString(request.SerializeToString())
    assert read == request
    assert read.compare[0].target == messages.Compare.MOD


def test_another_package_may_hold_messages_of_the_same_names():
    other = descriptor_pb2.FileDescriptorProto(name="rpc.proto", package="etcdserverpb")
    other.message_type.add(name="RangeRequest")
    descriptor_pool.Default().AddSerializedFile(other.SerializeToString())
    messages.RangeRequest(key=b"a")


@pytest.mark.parametrize("name", ["KV", "Lease", "Watch", "Auth", "Maintenance", "Cluster"])
def test_a_service_has_the_calls_of_the_protocol_and_no_others(name: str):
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        service = Service(channel, name)
        assert vars(service)
        with pytest.raises(AttributeError, match="no call 'Ragne'"):
            service.Ragne  # noqa: B018


@given(st.text(min_size=1), st.text(), st.text())
def test_a_range_holds_exactly_the_keys_of_its_prefix(prefix: str, rest: str, other: str):
    first, end = prefix.encode(), range_end(prefix)
    assert first <= (prefix + rest).encode() < end
    assert (first <= other.encode() < end) == other.startswith(prefix)


def test_a_range_without_a_prefix_holds_every_key():
    assert range_end("") == b"\0"
