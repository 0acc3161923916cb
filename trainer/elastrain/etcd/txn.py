"""Ranges of keys and transactions, as values and as etcd's messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from elastrain.etcd.kv import KeyValue
from elastrain.etcd.protocol import messages


@dataclass(frozen=True, slots=True)
class Range:
    """Keys to read or watch: one key, or all keys from ``key`` up to, not including, ``end``."""

    key: str
    end: str = ""
    """Empty: only ``key``."""
    listed_only: bool = False
    """A watch reports the range's keys when it lists, but not their changes."""
    deletes_only: bool = False
    """A watch reports only deletions after the list."""

    @classmethod
    def prefix(cls, prefix: str) -> Self:
        return cls(prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1))

    def request(self) -> Any:
        return messages.RangeRequest(key=self.key.encode(), range_end=self.end.encode())

    def watch_request(self, start_revision: int) -> Any:
        filters = [messages.WatchCreateRequest.NOPUT] if self.deletes_only else []
        create = messages.WatchCreateRequest(
            key=self.key.encode(),
            range_end=self.end.encode(),
            start_revision=start_revision,
            progress_notify=True,
            filters=filters,
        )
        return messages.WatchRequest(create_request=create)


def listing(ranges: Sequence[Range]) -> Any:
    """The request that reads all ranges at one revision."""
    return messages.TxnRequest(success=[messages.RequestOp(request_range=r.request()) for r in ranges])


def listed(answer: Any) -> tuple[list[KeyValue], int]:
    """The keys in an answer to :func:`listing`, and their revision."""
    kvs = [KeyValue.of(kv) for part in answer.responses for kv in part.response_range.kvs]
    return kvs, int(answer.header.revision)


@dataclass(frozen=True, slots=True)
class Transaction:
    """Writes that take effect together if all keys of ``unchanged`` have the expected mod_revision and all of
    ``holding`` the expected content, or not at all."""

    unchanged: tuple[tuple[str, int], ...]
    """Keys and their expected mod_revisions; 0: the key does not exist."""
    puts: tuple[tuple[str, bytes], ...]
    deleted: Range | None = None
    lease: int = 0
    """Lease of the written keys; 0: none."""
    holding: tuple[tuple[str, bytes], ...] = ()
    """Keys and what they are expected to hold."""

    def request(self) -> Any:
        compares = [
            messages.Compare(
                key=key.encode(), target=messages.Compare.MOD, result=messages.Compare.EQUAL, mod_revision=revision
            )
            for key, revision in self.unchanged
        ]
        compares += [
            messages.Compare(
                key=key.encode(), target=messages.Compare.VALUE, result=messages.Compare.EQUAL, value=value
            )
            for key, value in self.holding
        ]
        writes = [
            messages.RequestOp(request_put=messages.PutRequest(key=key.encode(), value=value, lease=self.lease))
            for key, value in self.puts
        ]
        if self.deleted is not None:
            gone = messages.DeleteRangeRequest(key=self.deleted.key.encode(), range_end=self.deleted.end.encode())
            writes.append(messages.RequestOp(request_delete_range=gone))
        return messages.TxnRequest(compare=compares, success=writes)
