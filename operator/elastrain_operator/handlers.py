"""What kopf calls: start, log-in and end. It watches nothing (``jobs.py`` does) and writes nothing: no finalizers, no
annotations."""

# kopf's decorators are typed, but mypy does not follow its imports here.
# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from typing import Any

import kopf

from elastrain_operator.app import App
from elastrain_operator.kube import access


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


def configure(settings: kopf.OperatorSettings) -> None:
    """kopf as the frame of the process, and nothing else."""
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True  # no watch on CRDs and namespaces: nothing cluster-scoped is needed
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.process.ultimate_exiting_timeout = 20
