"""What kopf calls. Only event handlers and an index: no finalizers, no annotations, nothing written by kopf."""

# kopf's decorators are typed, but mypy does not follow its imports here.
# mypy: disable-error-code="untyped-decorator"
from __future__ import annotations

from typing import Any

import kopf

from elastrain.api import names
from elastrain_operator import observe
from elastrain_operator.app import App
from elastrain_operator.model import Pod

WORKERS: dict[str, str] = {names.LABEL_MANAGED_BY: names.MANAGED_BY}


def register(registry: kopf.OperatorRegistry, app: App) -> None:
    """Register the handlers of ``app``."""

    # An operator that cannot start says why and ends; Kubernetes starts it again.
    @kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings)
        await app.start()

    @kopf.on.login(registry=registry)
    def login(**kwargs: Any) -> Any:
        # The second knows every kind of kubeconfig, and is not imported in a cluster: the client library is large.
        return kopf.login_with_service_account(**kwargs) or kopf.login_via_client(**kwargs)

    @kopf.on.cleanup(registry=registry)
    async def stop(**_: Any) -> None:
        await app.stop()

    @kopf.on.probe(registry=registry, id="state")
    def probe(**_: Any) -> dict[str, Any]:
        return app.state()

    @kopf.index("v1", "pods", labels=WORKERS, id="workers", registry=registry)
    def workers(body: kopf.Body, **_: Any) -> dict[str, Pod] | None:
        return _indexed(body)

    # kopf fills the index with all existing pods before it calls the first of these.
    @kopf.on.event(names.API_VERSION, names.PLURAL, registry=registry, id="job")
    async def job(event: kopf.RawEvent, workers: kopf.Index[str, Pod], **_: Any) -> None:
        await app.job_event(event["type"], event["object"], lambda uid: tuple(workers.get(uid, ())))

    @kopf.on.event("v1", "pods", labels=WORKERS, registry=registry, id="worker")
    async def worker(event: kopf.RawEvent, **_: Any) -> None:
        app.pod_event(event["type"], event["object"])


def configure(settings: kopf.OperatorSettings) -> None:
    """kopf as a reliable source of events, and nothing else."""
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True  # no watch on CRDs and namespaces: nothing cluster-scoped is needed
    settings.watching.label_selectors["pods"] = ",".join(f"{k}={v}" for k, v in WORKERS.items())
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.connect_timeout = 10
    settings.watching.reconnect_backoff = 0.5
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.process.ultimate_exiting_timeout = 20


def _indexed(body: kopf.Body) -> dict[str, Pod] | None:
    pod = observe.pod(dict(body))
    uid = body["metadata"].get("labels", {}).get(names.LABEL_JOB_UID)
    return {uid: pod} if pod and uid else None
