"""Metrics of the operator process, in the one registry of Prometheus' client library: the code that counts imports its
counter."""

from __future__ import annotations

import asyncio
import re
import time
from functools import lru_cache
from importlib.metadata import version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

LAG_INTERVAL = 2.0
"""Seconds between two measurements of the event loop's lag."""

_NAMESPACED = re.compile(r"/namespaces/[^/]+/(?P<resource>[a-z]+)(/(?P<name>[^/]+)(/(?P<sub>[a-z]+))?)?$")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}

disable_created_metrics()  # type: ignore[no-untyped-call]  # an unused second series beside each counter
REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

PLANS = Counter(
    "elastrain_operator_plans",
    "Passes over a job: observe, plan, apply. By outcome: done, failed.",
    ["outcome"],  # done, failed
    registry=REGISTRY,
)
ERRORS = Counter(
    "elastrain_operator_errors",
    "Failed passes, which are retried. By source: api (the API server), etcd, operator (a bug).",
    ["source"],  # api, etcd, operator
    registry=REGISTRY,
)
STATUSES_REFUSED = Counter(
    "elastrain_operator_statuses_refused",
    "Statuses of jobs that the API server refused to store. Each is tried again; meanwhile no pod comes or goes.",
    registry=REGISTRY,
)
PLAN_SECONDS = Histogram(
    "elastrain_operator_plan_duration_seconds",
    "Time to plan one job.",
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
    registry=REGISTRY,
)
PASS_SECONDS = Histogram(
    "elastrain_operator_pass_duration_seconds",
    "Time of a whole pass over one job, with all requests to the API server and etcd.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    registry=REGISTRY,
)
QUEUE_SECONDS = Histogram(
    "elastrain_operator_queue_duration_seconds",
    "Time from the first change of a job to the pass that processes it.",
    buckets=(0.05, 0.06, 0.08, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    registry=REGISTRY,
)
KUEUE_EVICTIONS = Counter(
    "elastrain_operator_kueue_evictions",
    "Workloads that Kueue took back. By kind (base: the whole job, extra: one replica) and Kueue's reason.",
    ["kind", "reason"],
    registry=REGISTRY,
)
LAG_SECONDS = Histogram(
    "elastrain_operator_event_loop_lag_seconds",
    "Delay of the event loop's wake-ups: it adds to every operation while the loop is busy.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
    registry=REGISTRY,
)
API_REQUESTS = Counter(
    "elastrain_operator_api_requests",
    "Requests to the API server. Each attempt counts; watches do not.",
    ["verb", "resource", "code"],  # code: HTTP status, or error without a response
    registry=REGISTRY,
)
API_SECONDS = Histogram(
    "elastrain_operator_api_request_duration_seconds",
    "Response time of the API server, per attempt.",
    ["verb", "resource"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    registry=REGISTRY,
)
EVENTS = Counter(
    "elastrain_operator_events",
    "Events on jobs. By outcome: recorded (sent, or counted in an earlier one), dropped (queue full, or refused).",
    ["outcome"],  # recorded, dropped
    registry=REGISTRY,
)
ETCD_CONNECTED = Gauge(
    "elastrain_operator_etcd_connected",
    "1 while the operator's mirror of etcd is current. At 0, the operator creates, drains and scales nothing.",
    registry=REGISTRY,
)
ETCD_OUTAGES = Counter(
    "elastrain_operator_etcd_outages",
    "Outages of etcd that lasted longer than a reconnect.",
    registry=REGISTRY,
)
ETCD_DATA_LOSSES = Counter(
    "elastrain_operator_etcd_data_losses",
    "Losses of etcd's data: it came back with a lower revision.",
    registry=REGISTRY,
)
ETCD_ALARM = Gauge(
    "elastrain_operator_etcd_alarm",
    "1 while etcd refuses the writes of all clients because of this alarm.",
    ["alarm"],  # NOSPACE, CORRUPT
    registry=REGISTRY,
)
ETCD_CERTIFICATE_EXPIRY = Gauge(
    "elastrain_operator_etcd_certificate_expiry_timestamp_seconds",
    "Unix time at which etcd's certificate expires, or the CA that clients trust, if that is earlier. 0: without TLS.",
    registry=REGISTRY,
)
RECORDS_REFUSED = Counter(
    "elastrain_operator_records_refused",
    "Records in etcd that are not read. By what: record (of a refused job, or under a key that no job has), "
    "job (all its records, for their size).",
    ["what"],
    registry=REGISTRY,
)
BUILD = Gauge(
    "elastrain_operator_build_info",
    "Always 1. The label contains the version.",
    ["version"],
    registry=REGISTRY,
)

BUILD.labels(version("elastrain")).set(1)
for _outcome in ("done", "failed"):
    PLANS.labels(_outcome)
for _source in ("api", "etcd", "operator"):
    ERRORS.labels(_source)
for _kind in ("base", "extra"):
    KUEUE_EVICTIONS.labels(_kind, "Preempted")


def text() -> bytes:
    """All metrics of this module in Prometheus' text format."""
    return generate_latest(REGISTRY)


def count_request(method: str, path: str, code: int, seconds: float) -> None:
    """Count an attempt of a request to the API server; ``code`` 0: no response."""
    requests, durations = _series(*verb_and_resource(method, path), code)
    requests.inc()
    durations.observe(seconds)


@lru_cache(maxsize=256)
def _series(verb: str, resource: str, code: int) -> tuple[Counter, Histogram]:
    """Cached, since looking a series up by its labels costs more than counting."""
    return API_REQUESTS.labels(verb, resource, str(code) if code else "error"), API_SECONDS.labels(verb, resource)


def verb_and_resource(method: str, path: str) -> tuple[str, str]:
    """Verb and resource as in RBAC: ``("patch", "elastictrainingjobs/status")``. Object names never become labels."""
    found = _NAMESPACED.search(path)
    if found is None:  # not namespaced: the last segment, a resource in a list, else an object's name
        return _VERBS.get(method, "get"), "other"
    resource = found["resource"] + (f"/{found['sub']}" if found["sub"] else "")
    return _VERBS.get(method) or ("get" if found["name"] else "list"), resource


async def measure_lag() -> None:
    """Measure the event loop's lag until cancelled."""
    while True:
        began = time.monotonic()
        await asyncio.sleep(LAG_INTERVAL)
        LAG_SECONDS.observe(max(0.0, time.monotonic() - began - LAG_INTERVAL))
