"""Stock ``torchrun`` over etcd v3: torch's rendezvous handler, which torch finds by its entry point."""

from __future__ import annotations

from typing import Any


def handler_factory() -> Any:
    """Entry point of the group ``torchrun.handlers``: returns the function that makes a handler from parameters.

    torch calls it in each process that imports its rendezvous, ranks included: the handler is imported at its use.
    """

    def create(params: Any) -> Any:
        from elastrain_torchrun.handler import create_handler

        return create_handler(params)

    return create
