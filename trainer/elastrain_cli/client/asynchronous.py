"""The client for programs with an event loop; ``Jobs`` is the same client for programs without one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Self

from elastrain.api import names
from elastrain.api.names import headcount
from elastrain_cli.client import errors
from elastrain_cli.client.connection import MERGE_PATCH, Connection
from elastrain_cli.client.records import LogLine, event_of, job_of, worker_of
from elastrain_resource.job import ElasticTrainingJob
from elastrain_resource.job.shown import Event, Worker

ENDED = ("Succeeded", "Failed")
_WATCH_SECONDS = 300
"""Seconds after which the API server ends a watch; the client then resumes it."""
_AGAIN_SECONDS = 1.0
"""Seconds between the end of a watch and the next."""


class AsyncJobs:
    """The ``ElasticTrainingJob`` resources of one namespace.

    ``async with await AsyncJobs.connect() as jobs: job = await jobs.get("digits")``.

    Every method can raise a :class:`~elastrain.client.ClusterError`. Its subclasses name the cause: ``NotConnected``,
    ``NotInstalled``, ``NotAllowed``, ``JobNotFound``, ``JobExists`` and ``Refused``.
    """

    def __init__(self, connection: Connection) -> None:
        """Use an existing connection; :meth:`connect` opens one."""
        self._connection = connection
        self.namespace = connection.namespace

    @classmethod
    async def connect(
        cls, *, namespace: str | None = None, context: str | None = None, kubeconfig: str | None = None
    ) -> Self:
        """Connect by a kubeconfig, or in a pod by its service account.

        ``kubeconfig``: a path; None: ``$KUBECONFIG``, else ``~/.kube/config``. ``namespace``: None: the context's
        namespace, or the pod's. Raises :class:`~elastrain_cli.client.NotConnected`.
        """
        return cls(await Connection.open(namespace=namespace, context=context, kubeconfig=kubeconfig))

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- jobs ----------------------------------------------------------------------------------------------------------
    async def submit(self, job: ElasticTrainingJob | Mapping[str, Any], *, dry_run: bool = False) -> ElasticTrainingJob:
        """Create the job in the namespace of its metadata, else in this client's namespace, and return it.

        ``dry_run``: the API server only validates the job. Raises ``JobExists`` if the name is taken and ``Refused`` if
        the job breaks a rule.
        """
        body = _body(job)
        metadata = body.get("metadata", {})
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        name, path = str(metadata.get("name", "")), self._path(namespace=metadata.get("namespace"))
        return job_of(await self._connection.call("POST", path, f"submit job {name}", name, body=body, query=query))

    async def add_files(self, job: ElasticTrainingJob, name: str, files: Mapping[str, str]) -> None:
        """Create the ConfigMap ``name`` with text ``files`` for a job that mounts it. Kubernetes deletes it with the
        job.

        Raises ``Refused`` if the ConfigMap exists, or the files together exceed 1 MiB.
        """
        owner = {
            "apiVersion": names.API_VERSION, "kind": names.KIND, "name": job.name, "uid": job.metadata["uid"],
        }  # fmt: skip
        body = {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": [owner]},
            "data": dict(files),
        }  # fmt: skip
        path = f"/api/v1/namespaces/{job.namespace}/configmaps"
        await self._connection.call("POST", path, f"send the files of job {job.name}", job.name, body=body)

    async def get(self, name: str) -> ElasticTrainingJob:
        """The current state of the job. Raises ``JobNotFound``."""
        return job_of(await self._connection.call("GET", self._path(name), f"read job {name}", name))

    async def list(self, *, all_namespaces: bool = False) -> tuple[ElasticTrainingJob, ...]:
        """All jobs of the namespace or, with ``all_namespaces``, of the cluster, sorted by namespace and name."""
        path = f"/apis/{names.API_VERSION}/{names.PLURAL}" if all_namespaces else self._path()
        found = [job_of(item) for item in await self._all(path, "list jobs")]
        return tuple(sorted(found, key=lambda job: (job.namespace, job.name)))

    async def scale(self, name: str, replicas: int) -> int:
        """Set the desired number of workers; returns the previous number.

        Raises ``JobNotFound``, and ``Refused`` if ``replicas`` is outside the job's bounds.
        """
        before = (await self.get(name)).spec.desired_replicas
        await self._patch(name, {"replicas": replicas}, f"scale job {name} to {headcount(replicas)}")
        return before

    async def suspend(self, name: str) -> None:
        """Drain all workers at a step boundary and keep the job. Raises ``JobNotFound``."""
        await self._patch(name, {"suspend": True}, f"suspend job {name}")

    async def resume(self, name: str) -> None:
        """Start the workers of a suspended job again. Raises ``JobNotFound``."""
        await self._patch(name, {"suspend": False}, f"resume job {name}")

    async def delete(self, name: str) -> None:
        """Delete the job and its pods. Raises ``JobNotFound``."""
        await self._connection.call("DELETE", self._path(name), f"delete job {name}", name)

    # -- state and output ----------------------------------------------------------------------------------------------
    async def watch(self, name: str) -> AsyncIterator[ElasticTrainingJob]:
        """Yield the job now and after each change, until it is deleted. Raises ``JobNotFound`` if there is no such job.

        The client resumes a broken watch, and raises ``NotConnected`` if the API server stays unreachable.
        """
        version = ""
        while True:
            try:
                job = await self.get(name)  # includes the changes that the last watch missed
            except errors.JobNotFound:
                if not version:
                    raise
                return
            if job.metadata.get("resourceVersion") != version:
                version = str(job.metadata.get("resourceVersion"))
                yield job
            async for body in self._changes(name, version):
                if body is None:
                    return
                job = job_of(body)
                version = str(job.metadata.get("resourceVersion"))
                yield job
            await asyncio.sleep(_AGAIN_SECONDS)

    async def wait(
        self, name: str, *, until: tuple[str, ...] = ENDED, timeout_seconds: float | None = None
    ) -> ElasticTrainingJob:
        """Wait until the job's phase is one of ``until``, and return the job.

        ``timeout_seconds``: None: no limit. Raises ``TimeoutError`` with the current phase, and ``JobNotFound`` if the
        job is deleted meanwhile.
        """
        phase: str | None = None
        try:
            async with asyncio.timeout(timeout_seconds):
                async for job in self.watch(name):
                    phase = job.status.phase if job.status else None
                    if phase in until:
                        return job
        except TimeoutError:
            raise TimeoutError(
                f"job {name} is {phase or 'not observed by an operator'} after {timeout_seconds:g} s, "
                f"waited for {' or '.join(until)}"
            ) from None
        raise errors.JobNotFound(f"job {name} was deleted during the wait")

    async def workers(self, name: str) -> tuple[Worker, ...]:
        """The job's worker pods, oldest first; empty if the job has none."""
        path, selector = f"/api/v1/namespaces/{self.namespace}/pods", f"{names.LABEL_JOB}={name}"
        found = await self._all(path, f"list the workers of job {name}", labelSelector=selector)
        return tuple(sorted(map(worker_of, found), key=lambda worker: worker.ordinal))

    async def events(self, name: str) -> tuple[Event, ...]:
        """The job's events, oldest first. The API server keeps an event for 1 h by default."""
        path = f"/api/v1/namespaces/{self.namespace}/events"
        selector = f"involvedObject.kind={names.KIND},involvedObject.name={name}"
        found = await self._all(path, f"read the events of job {name}", fieldSelector=selector)
        events = sorted(map(event_of, found), key=lambda event: event.time.timestamp() if event.time else 0.0)
        return tuple(events)

    async def logs(self, worker: str, *, follow: bool = False, tail: int | None = None) -> AsyncIterator[LogLine]:
        """Yield the lines of one worker's training container: all lines, or the last ``tail``.

        ``follow``: continue until the container ends. Raises ``Refused`` if the container has not started.
        """
        what, path = f"read the log of {worker}", f"/api/v1/namespaces/{self.namespace}/pods/{worker}"
        pod = await self._connection.call("GET", path, what, worker)
        containers = [c["name"] for c in pod["spec"]["containers"]]
        trains = names.TRAINER_CONTAINER if names.TRAINER_CONTAINER in containers else containers[0]
        query = {"container": trains, "follow": str(follow).lower()}
        if tail is not None:
            query["tailLines"] = str(tail)
        async for line in self._connection.lines(f"{path}/log", what, worker, query):
            yield LogLine(worker, line.decode(errors="replace").rstrip("\n"))

    # -- inside --------------------------------------------------------------------------------------------------------
    def _path(self, name: str = "", namespace: str | None = None) -> str:
        jobs = f"/apis/{names.API_VERSION}/namespaces/{namespace or self.namespace}/{names.PLURAL}"
        return f"{jobs}/{name}" if name else jobs

    async def _patch(self, name: str, spec: Mapping[str, Any], what: str) -> None:
        await self._connection.call("PATCH", self._path(name), what, name, body={"spec": spec}, content=MERGE_PATCH)

    async def _all(self, path: str, what: str, **query: str) -> Sequence[dict[str, Any]]:
        """All objects of a list, read page by page."""
        return [item async for items, _ in self._connection.list_pages(path, what, query) for item in items]

    async def _changes(self, name: str, version: str) -> AsyncIterator[dict[str, Any] | None]:
        """The job after each change since ``version``; None after its deletion. Ends with the watch."""
        query = {
            "watch": "true", "fieldSelector": f"metadata.name={name}", "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_SECONDS),
        }  # fmt: skip
        try:
            async for line in self._connection.lines(self._path(), f"watch job {name}", name, query):
                change = _change(line)
                if change is None:
                    return
                yield None if change["type"] == "DELETED" else change["object"]
        except errors.NotConnected:
            return  # the caller's next request detects an unreachable API server


def _change(line: bytes) -> dict[str, Any] | None:
    """One event of a watch; None for an event that ends it: an expired version or a torn line."""
    try:
        change = json.loads(line)
    except ValueError:
        return None
    is_event = isinstance(change, dict) and change.get("type") in {"ADDED", "MODIFIED", "DELETED"}
    return change if is_event else None


def _body(job: ElasticTrainingJob | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(job, ElasticTrainingJob):
        return job.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"status"})
    return dict(job)
