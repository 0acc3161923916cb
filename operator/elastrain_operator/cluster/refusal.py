"""Whether the API server refuses a list for good. Pure.

A single 401 or 403 proves nothing: tokens and role bindings are replaced, and an API server that starts knows no roles
yet. Only its own review of the operator's rights counts, and only if all answers within a minute agree.
"""

from __future__ import annotations

from dataclasses import dataclass

CONFIRM_SECONDS = 60.0
"""Seconds over which reviews must agree that a right is missing."""
ASK_SECONDS = 10.0
"""Seconds between two reviews."""


@dataclass(frozen=True, slots=True)
class Reviews:
    """The reviews of one right so far."""

    since: float | None = None
    """When the first of consecutive reviews found the right missing (seconds of a monotonic clock); None: none did."""
    last: float = 0.0
    """When the newest one did."""

    def after(self, allowed: bool | None, now: float) -> Reviews:
        """After another review at ``now``; ``allowed`` None: it was not answered, which ends the agreement."""
        if allowed is not False:
            return Reviews()
        return Reviews(now if self.since is None else self.since, now)

    @property
    def confirmed(self) -> bool:
        """The right is missing."""
        return self.since is not None and self.last - self.since >= CONFIRM_SECONDS
