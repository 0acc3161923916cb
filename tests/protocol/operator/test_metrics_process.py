"""Metrics of the operator process: requests by verb and resource, and the metrics server."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from elastrain_operator.metrics import process
from elastrain_operator.metrics.server import MetricsServer

JOBS = "/apis/elastrain.dev/v1alpha1/namespaces/team/elastictrainingjobs"


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", f"{JOBS}/bert", ("get", "elastictrainingjobs")),
        ("GET", JOBS, ("list", "elastictrainingjobs")),
        ("PATCH", f"{JOBS}/bert/status", ("patch", "elastictrainingjobs/status")),
        ("POST", "/api/v1/namespaces/team/pods", ("create", "pods")),
        ("DELETE", "/api/v1/namespaces/team/pods/bert-0", ("delete", "pods")),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/x/leases/y", ("update", "leases")),
        ("GET", "/api/v1/nodes", ("get", "other")),
    ],
)
def test_a_request_is_counted_by_its_rbac_names(method, path, expected):
    assert process.verb_and_resource(method, path) == expected


def test_names_of_objects_never_become_labels():
    for n in range(50):
        process.count_request("GET", f"{JOBS}/job-{n}", 404, 0.001)
    labels = {tuple(s.labels.values()) for m in process.API_REQUESTS.collect() for s in m.samples}
    assert ("get", "elastictrainingjobs", "404") in labels
    assert not [x for x in labels if "job-1" in str(x)]


def test_a_request_without_an_answer_is_an_error():
    counter = process.API_REQUESTS.labels("get", "elastictrainingjobs", "error")
    before = counter._value.get()
    process.count_request("GET", f"{JOBS}/bert", 0, 10.0)
    assert counter._value.get() == before + 1


# ---- the server ------------------------------------------------------------------------------------------------------
@pytest.fixture
def server():
    found = MetricsServer(lambda: b"things_total 3.0\n", 0, "127.0.0.1")
    yield found
    found.close()


def get(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return answer.read().decode()


def test_metrics_are_served_until_it_is_closed(server):
    assert "things_total 3.0" in get(server.port)
    server.close()
    with pytest.raises(urllib.error.URLError):
        get(server.port)


def test_only_get_is_supported(server):
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/metrics", b"x", method="POST")
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(request, timeout=5)


def test_other_paths_are_not_found(server):
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/", timeout=5)


def test_a_taken_port_is_reported(server):
    with pytest.raises(OSError, match="in use"):
        MetricsServer(bytes, server.port, "127.0.0.1")
