"""kopf's handlers: start, login, jobs, end. None of them decides anything or writes to an object.

Jobs have no daemon and no change handlers: kopf would add a finalizer and annotations to them (docs/decisions/0080).
Worker pods and all other objects come by :class:`elastrain_resource.reflector.Reflector`, which costs a third as much.
"""

# kopf's decorators are typed, but mypy does not follow its imports here.
# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kopf

from elastrain.api import names
from elastrain_operator.app import App
from elastrain_operator.kube import access
from elastrain_resource.reflector import PAGE, RETRY_DELAYS

JOBS = (names.GROUP, names.VERSION, names.PLURAL)


def register(registry: kopf.OperatorRegistry, app: App) -> None:
    """Register the handlers of ``app``."""

    # An operator that cannot start logs the cause and ends; Kubernetes restarts it.
    @kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        await app.start()

    @kopf.on.login(registry=registry)
    def login(settings: kopf.OperatorSettings, **_: Any) -> Any:
        return access.login(settings)

    @kopf.on.event(*JOBS, registry=registry)
    async def job(event: Any, **_: Any) -> None:
        app.job_event(event["type"], event["object"])

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await app.stop()


def configure(settings: kopf.OperatorSettings) -> None:
    """kopf watches; it writes nothing and compares nothing."""
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.persistence.diffbase_storage = NoComparison()
    settings.scanning.disabled = True  # no watch on CRDs and namespaces: nothing cluster-scoped is needed
    settings.watching.chunk_size = PAGE
    settings.queueing.idle_timeout = 1.0  # seconds; until then a quiet object holds a task and a queue
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.networking.error_backoffs = Backoffs()
    settings.process.ultimate_exiting_timeout = 20


class Backoffs:
    """Infinite delays: kopf ends the operator after the last one."""

    def __iter__(self) -> Iterator[float]:
        yield from RETRY_DELAYS
        while True:
            yield RETRY_DELAYS[-1]


class NoComparison(kopf.DiffBaseStorage):  # type: ignore[misc]
    """Keeps kopf from copying each object to detect changes: no handler needs them."""

    def build(self, **_: Any) -> Any:
        return {}

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass
