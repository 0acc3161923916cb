"""etcd's protocol: its messages, and the calls of its services.

Both follow from etcd's own ``.proto`` files, which ``scripts/etcd_protocol.py`` compiles to ``protocol.binpb``. The
import of this module makes the classes, by public functions of protobuf. Generated Python code would be bound to two
major versions of protobuf (protobuf.dev, "Cross-Version Runtime Guarantee"); those in users' environments differ by
more. The pool of descriptors is this module's own: another etcd client in the process uses the same names.
"""

from __future__ import annotations

from importlib.resources import files
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_POOL = descriptor_pool.DescriptorPool()


def _load() -> dict[str, Any]:
    """Add the files to the pool; return all message classes by their names, which are unique among etcd's packages."""
    compiled = descriptor_pb2.FileDescriptorSet.FromString((files(__package__) / "protocol.binpb").read_bytes())
    found: dict[str, Any] = {}
    for file in compiled.file:
        _POOL.AddSerializedFile(file.SerializeToString())
        for message in _POOL.FindFileByName(file.name).message_types_by_name.values():
            found[message.name] = message_factory.GetMessageClass(message)
    return found


messages = SimpleNamespace(**_load())
"""The classes of all messages, as attributes: ``messages.RangeRequest(key=b"...")``."""


class Service:
    """The calls of one of etcd's services over ``channel``, as methods by their names in the protocol."""

    def __init__(self, channel: grpc.Channel, name: str) -> None:
        """``name``: ``KV``, ``Lease``, ``Watch``, ``Auth``, ``Maintenance`` or ``Cluster``. Raises ``KeyError``."""
        for method in _POOL.FindServiceByName(f"etcdserverpb.{name}").methods:
            arity = f"{_arity(method.client_streaming)}_{_arity(method.server_streaming)}"
            call = getattr(channel, arity)(
                f"/etcdserverpb.{name}/{method.name}",
                request_serializer=message_factory.GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
            )
            setattr(self, method.name, call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"etcd's protocol has no call {name!r}")


def _arity(streaming: bool) -> str:
    return "stream" if streaming else "unary"
