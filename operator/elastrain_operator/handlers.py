"""What kopf calls: one event handler. No finalizers, no annotations, nothing written by kopf."""

# kopf's decorators are typed, but mypy does not follow its imports here.
# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from typing import Any

import kopf

from elastrain.api import names
from elastrain_operator import access
from elastrain_operator.app import App


def register(registry: kopf.OperatorRegistry, app: App) -> None:
    """Register the handlers of ``app``."""

    # An operator that cannot start says why and ends; Kubernetes starts it again.
    @kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        await app.start()

    @kopf.on.login(registry=registry)
    def login(settings: kopf.OperatorSettings, **_: Any) -> Any:
        return access.login(settings)

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await app.stop()

    @kopf.on.event(names.API_VERSION, names.PLURAL, registry=registry, id="job")
    async def job(event: kopf.RawEvent, **_: Any) -> None:
        await app.job_event(event["type"], event["object"])


class NoDiffs(kopf.DiffBaseStorage):  # type: ignore[misc]
    """kopf compares each version of an object with the last one that its change handlers have seen, at the price of
    deep copies; there are no such handlers here."""

    def build(self, *, body: Any, extra_fields: Any = None) -> Any:
        return {}

    def fetch(self, *, body: Any) -> Any:
        return None

    def store(self, *, body: Any, patch: Any, essence: Any) -> None:
        pass


def configure(settings: kopf.OperatorSettings) -> None:
    """kopf as a reliable source of events, and nothing else."""
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True  # no watch on CRDs and namespaces: nothing cluster-scoped is needed
    settings.persistence.diffbase_storage = NoDiffs()
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.watching.reconnect_backoff = 0.5
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.process.ultimate_exiting_timeout = 20
