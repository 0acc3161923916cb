"""What the workers of each namespace hold during an allocation, and what its quota still permits. Mutable, used for one
allocation."""

from __future__ import annotations

from collections.abc import Mapping

from elastrain_operator.allocation import explanations
from elastrain_operator.allocation.snapshot import Amounts


class Quotas:
    """The use of all quotas."""

    def __init__(self, most: Mapping[str, Mapping[str, int]]) -> None:
        """``most``: namespace → resource → bound."""
        self._most = most
        self._used: dict[str, dict[str, int]] = {namespace: {} for namespace in most}

    def refusal(self, namespace: str, demand: Amounts, times: int = 1) -> str | None:
        """Why the quota of the namespace does not permit so many times ``demand`` more; None: it does."""
        bounds = self._most.get(namespace, {})
        for resource, amount in demand:
            most, used = bounds.get(resource), self._used.get(namespace, {}).get(resource, 0)
            if most is not None and used + times * amount > most:
                return explanations.quota(namespace, resource, used, most, times * amount, workers=times)
        return None

    def use(self, namespace: str, demand: Amounts, times: int = 1) -> None:
        used = self._used.get(namespace)
        if used is not None:
            for resource, amount in demand:
                used[resource] = used.get(resource, 0) + times * amount

    def left(self) -> dict[str, dict[str, int]]:
        """Namespace → resource → amount that is still permitted."""
        return {n: {r: most - self._used[n].get(r, 0) for r, most in b.items()} for n, b in self._most.items()}

    def copy_of(self, namespace: str) -> dict[str, int] | None:
        """The use of one namespace, for :meth:`restore`."""
        used = self._used.get(namespace)
        return None if used is None else dict(used)

    def restore(self, namespace: str, used: dict[str, int] | None) -> None:
        if used is not None:
            self._used[namespace] = used
