"""The records of one job as read from etcd, kept up to date by a watch; it makes the :class:`View`."""

from __future__ import annotations

import logging
from typing import TypeVar

from pydantic import ValidationError

from elastrain.api.keys import JobKeys
from elastrain.api.records import Closed, Generation, Member, Progress, Record, Target
from elastrain.etcd import Batch, KeyValue, Put
from elastrain.rendezvous.view import Seen, View

log = logging.getLogger(__name__)

R = TypeVar("R", bound=Record)


class Mirror:
    """Not thread-safe: one thread applies batches and asks for views."""

    def __init__(self, keys: JobKeys) -> None:
        self._keys = keys
        self.members: dict[str, Seen] = {}
        self.missing: dict[str, Seen] = {}
        """Members whose keys vanished around an outage of etcd: they may only have had no chance to renew."""
        self.target: Target | None = None
        self.generation: Generation | None = None
        self.generation_mod_revision = 0
        self.progress: Progress | None = None
        self.closed: Closed | None = None
        self.revision = 0

    def apply(self, batch: Batch, *, keep_missing: bool = False) -> None:
        """Take the batch's changes over. A record that cannot be read counts as absent, and is logged.

        With ``keep_missing``, members whose keys were deleted stay in the view until :meth:`drop_missing`.
        """
        for event in batch.events:
            if isinstance(event, Put):
                self._put(event.kv.key, event.kv)
                continue
            member = self.members.get(event.key.removeprefix(self._keys.members))
            if keep_missing and member is not None:
                self.missing[member.id] = member
            self._put(event.key, None)
        self.revision = batch.revision

    def drop_missing(self) -> None:
        """The missing ones have had their chance."""
        self.missing.clear()

    def _put(self, key: str, kv: KeyValue | None) -> None:
        keys = self._keys
        if key.startswith(keys.members):
            member = _decode(Member, kv)
            if member is None or kv is None:
                self.members.pop(key.removeprefix(keys.members), None)
            else:
                self.members[member.id] = Seen(member, kv.create_revision)
                self.missing.pop(member.id, None)
        elif key == keys.target:
            self.target = _decode(Target, kv)
        elif key == keys.generation:
            self.generation = _decode(Generation, kv)
            self.generation_mod_revision = kv.mod_revision if kv else 0
        elif key == keys.progress:
            self.progress = _decode(Progress, kv)
        elif key == keys.closed:
            self.closed = _decode(Closed, kv)

    def view(self, self_id: str, suspects: frozenset[str] = frozenset(), unsure: frozenset[str] = frozenset()) -> View:
        """A snapshot, as ``self_id`` sees it."""
        members = (*self.members.values(), *self.missing.values())
        steps = [m.record.step for m in members]
        return View(
            self_id=self_id,
            target=self.target,
            members=members,
            generation=self.generation,
            generation_mod_revision=self.generation_mod_revision,
            finished=self.closed is not None or (self.progress is not None and self.progress.finished),
            closed=self.closed,
            suspects=suspects,
            unsure=unsure,
            step=max([self.progress.step if self.progress else 0, *steps]),
            revision=self.revision,
        )


def _decode(kind: type[R], kv: KeyValue | None) -> R | None:
    if kv is None:
        return None
    try:
        return kind.decode(kv.value)
    except ValidationError as error:
        log.error("%s is not a valid %s, it is ignored: %s", kv.key, kind.__name__, error)
        return None
