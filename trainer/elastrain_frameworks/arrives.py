"""State that reaches a framework's loop while that is not at the place where it can take it."""

from __future__ import annotations

from typing import Any

from elastrain.elastic.encoding import decode, encode


class Arrives:
    """First base of a tracked object: what arrives is kept until the adapter takes it."""

    _received: bytes | None = None

    def present(self) -> Any:
        """The state of the last committed step, of values that can be encoded."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, bytes]:
        """Of the last committed step."""
        return {"encoded": encode(self.present()) if self._received is None else self._received}

    def load_state_dict(self, state: dict[str, bytes]) -> None:
        """Keep it for :meth:`taken`."""
        self._received = state["encoded"]

    @property
    def arrived(self) -> bool:
        """Whether a peer's state, or a checkpoint's, waits."""
        return self._received is not None

    def taken(self, *, keep: bool = False, drop: bool = False) -> Any:
        """What has arrived, or None. ``keep``: also for the next call. ``drop``: it is not used."""
        received = self._received
        self._received = received if keep else None
        return None if received is None or drop else decode(received)


def track_next(job: Any, kind: str, before: int, *objects: Any) -> None:
    """Track the objects as ``kind``, ``kind1`` and so on; ``before`` of them are tracked already."""
    job.track(**{f"{kind}{before + i or ''}": obj for i, obj in enumerate(objects)})
