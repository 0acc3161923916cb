"""Raw requests to a real API server, without a client library, for the operator's tests."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import ssl
import threading
import urllib.error
import urllib.parse
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.api.records import Outcome, Termination

TEMPLATE = {"spec": {"containers": [{"name": "trainer", "image": "trainer:1", "command": ["python", "train.py"]}]}}


def wire_time(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


class Cluster:
    """Raw requests to the API server in one separate namespace."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        self.kubeconfig = kubeconfig
        self.namespace = namespace
        self._server = config["clusters"][0]["cluster"]["server"]
        self._token = config["users"][0]["user"]["token"]
        self._tls = ssl.create_default_context()
        self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self._of_thread = threading.local()

    def call(self, method: str, path: str, body: object = None, content: str = "application/json") -> dict[str, Any]:
        """Raises ``urllib.error.HTTPError``, and ``URLError`` without a server."""
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": content}
        data = None if body is None else json.dumps(body).encode()
        try:
            answer = self._send(method, path, data, headers)
            found = answer.read()
        except (http.client.HTTPException, OSError) as error:
            self._of_thread.connection = None
            raise urllib.error.URLError(error) from error
        if answer.status >= 400:
            url = self._server + path
            raise urllib.error.HTTPError(url, answer.status, answer.reason, answer.headers, io.BytesIO(found))
        return dict(json.loads(found))

    def _send(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        """On the thread's connection, as a handshake costs more than most requests; on a new one if the server has
        closed that."""
        connection = getattr(self._of_thread, "connection", None)
        if connection is not None:
            with contextlib.suppress(http.client.RemoteDisconnected, ConnectionError, ssl.SSLError):
                connection.request(method, path, data, headers)
                return connection.getresponse()
            connection.close()
        place = urllib.parse.urlsplit(self._server).netloc
        connection = http.client.HTTPSConnection(place, timeout=10, context=self._tls)
        self._of_thread.connection = connection
        connection.request(method, path, data, headers)
        return connection.getresponse()

    def merge(self, path: str, body: object) -> dict[str, Any]:
        return self.call("PATCH", path, body, "application/merge-patch+json")

    @property
    def pods_path(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def job_path(self, name: str = "") -> str:
        path = f"/apis/{names.API_VERSION}/namespaces/{self.namespace}/{names.PLURAL}"
        return f"{path}/{name}" if name else path

    def pods(self) -> dict[str, dict[str, Any]]:
        """Pods by name."""
        return {p["metadata"]["name"]: p for p in self.call("GET", self.pods_path)["items"]}

    def job(self, name: str) -> dict[str, Any]:
        return self.call("GET", self.job_path(name))

    def status(self, name: str) -> dict[str, Any]:
        return dict(self.job(name).get("status") or {})

    def exists(self, name: str) -> bool:
        with contextlib.suppress(urllib.error.HTTPError):
            return bool(self.job(name))
        return False

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        return next((c for c in self.status(name).get("conditions", []) if c["type"] == kind), {})

    def events(self, name: str) -> list[tuple[str, str]]:
        """(reason, message) of the events on a job."""
        items = self.call("GET", f"/api/v1/namespaces/{self.namespace}/events")["items"]
        return [(e["reason"], e["message"]) for e in items if e["involvedObject"]["name"] == name]

    def create_job(self, name: str, **spec: Any) -> JobKeys:
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name},
            "spec": {"template": TEMPLATE, **spec},
        }
        created = self.call("POST", self.job_path(), body)
        return JobKeys(self.namespace, name, created["metadata"]["uid"])

    def patch_job(self, name: str, **spec: Any) -> None:
        self.merge(self.job_path(name), {"spec": spec})

    def set_trainer(self, pod: str, phase: str, state: dict[str, Any], ready: bool = False) -> None:
        """Report a pod's status as a kubelet would."""
        container = {
            "name": "trainer", "image": "trainer:1", "imageID": "", "ready": ready, "restartCount": 0, "state": state,
        }  # fmt: skip
        condition = {
            "type": "Ready",
            "status": "True" if ready else "False",
            "lastTransitionTime": wire_time(datetime.now(UTC)),
        }
        status = {"phase": phase, "containerStatuses": [container], "conditions": [condition]}
        self.merge(f"{self.pods_path}/{pod}/status", {"status": status})

    def end_trainer(self, pod: str, record: Termination) -> None:
        """The trainer container of a pod ends with this record."""
        stamp = wire_time(datetime.now(UTC).replace(microsecond=0))
        ended = {"exitCode": record.exit_code, "message": record.encode().decode(), "finishedAt": stamp}
        phase = "Failed" if record.outcome is Outcome.FAILED else "Succeeded"
        self.set_trainer(pod, phase, {"terminated": {**ended, "startedAt": stamp}})
