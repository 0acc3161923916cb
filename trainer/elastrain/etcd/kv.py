"""An etcd key as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key at some revision."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int = 0
    """Id of its lease; 0: none."""

    @classmethod
    def of(cls, message: Any) -> KeyValue:
        """From the protocol's message of the same name."""
        return cls(
            key=message.key.decode(),
            value=message.value,
            create_revision=message.create_revision,
            mod_revision=message.mod_revision,
            lease=message.lease,
        )
