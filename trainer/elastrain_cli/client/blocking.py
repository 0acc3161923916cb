"""The client for programs without an event loop: runs :class:`AsyncJobs` on a loop in its own thread.

The thread makes the client usable where a loop already runs, as in a notebook.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from typing import Any, Self, TypeVar

from elastrain import threads
from elastrain_cli.client.asynchronous import ENDED, AsyncJobs
from elastrain_cli.client.records import LogLine
from elastrain_resource.job import ElasticTrainingJob
from elastrain_resource.job.shown import Event, Worker

T = TypeVar("T")

STOP_SECONDS = 1.0
"""Seconds to wait for the loop to stop; a blocked loop (in a file system, for example) ends with the process."""


class Jobs:
    """The ``ElasticTrainingJob`` resources of one namespace.

    ``with Jobs() as jobs: print(jobs.get("digits").status.phase)``. Each method has the behavior and the errors of the
    method of the same name in :class:`AsyncJobs`. Not thread-safe.
    """

    def __init__(
        self, *, namespace: str | None = None, context: str | None = None, kubeconfig: str | None = None
    ) -> None:
        """Connect as :meth:`AsyncJobs.connect` does; ``namespace`` None: the context's namespace. Raises
        ``NotConnected``."""
        self._loop = asyncio.new_event_loop()
        self._thread = threads.start(self._loop.run_forever, name="elastrain-client")
        try:
            self._jobs = self._do(AsyncJobs.connect(namespace=namespace, context=context, kubeconfig=kubeconfig))
        except BaseException:
            self._stop()
            raise

    @property
    def namespace(self) -> str:
        """The default namespace of all calls."""
        return self._jobs.namespace

    def close(self) -> None:
        """Close the connections and stop the loop."""
        if not self._loop.is_closed():
            self._do(self._jobs.close())
            self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, job: ElasticTrainingJob | Mapping[str, Any], *, dry_run: bool = False) -> ElasticTrainingJob:
        """Create a job and return it. Raises ``JobExists`` and ``Refused``; see :meth:`AsyncJobs.submit`."""
        return self._do(self._jobs.submit(job, dry_run=dry_run))

    def add_files(self, job: ElasticTrainingJob, name: str, files: Mapping[str, str]) -> None:
        """Create a ConfigMap with the files of a job. Raises ``Refused``; see :meth:`AsyncJobs.add_files`."""
        self._do(self._jobs.add_files(job, name, files))

    def get(self, name: str) -> ElasticTrainingJob:
        """The current state of a job. Raises ``JobNotFound``."""
        return self._do(self._jobs.get(name))

    def list(self, *, all_namespaces: bool = False) -> tuple[ElasticTrainingJob, ...]:
        """All jobs of the namespace or of the cluster, sorted by namespace and name."""
        return self._do(self._jobs.list(all_namespaces=all_namespaces))

    def scale(self, name: str, replicas: int) -> int:
        """Set the desired number of workers; returns the previous number. Raises ``JobNotFound`` and ``Refused``."""
        return self._do(self._jobs.scale(name, replicas))

    def suspend(self, name: str) -> None:
        """Drain all workers at a step boundary and keep the job. Raises ``JobNotFound``."""
        self._do(self._jobs.suspend(name))

    def resume(self, name: str) -> None:
        """Start the workers of a suspended job again. Raises ``JobNotFound``."""
        self._do(self._jobs.resume(name))

    def delete(self, name: str) -> None:
        """Delete the job and its pods. Raises ``JobNotFound``."""
        self._do(self._jobs.delete(name))

    def watch(self, name: str) -> Iterator[ElasticTrainingJob]:
        """Yield the job now and after each change, until it is deleted; see :meth:`AsyncJobs.watch`."""
        return self._each(self._jobs.watch(name))

    def wait(
        self, name: str, *, until: tuple[str, ...] = ENDED, timeout_seconds: float | None = None
    ) -> ElasticTrainingJob:
        """Wait for a phase of ``until``, and return the job. ``timeout_seconds`` None: no limit.

        Raises ``TimeoutError`` and ``JobNotFound``; see :meth:`AsyncJobs.wait`.
        """
        return self._do(self._jobs.wait(name, until=until, timeout_seconds=timeout_seconds))

    def workers(self, name: str) -> tuple[Worker, ...]:
        """The job's worker pods, oldest first; empty if the job has none."""
        return self._do(self._jobs.workers(name))

    def events(self, name: str) -> tuple[Event, ...]:
        """The job's events, oldest first."""
        return self._do(self._jobs.events(name))

    def logs(self, worker: str, *, follow: bool = False, tail: int | None = None) -> Iterator[LogLine]:
        """Yield the lines of one worker's training container; see :meth:`AsyncJobs.logs`."""
        return self._each(self._jobs.logs(worker, follow=follow, tail=tail))

    # -- inside --------------------------------------------------------------------------------------------------------
    def _do(self, coroutine: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            if future.cancel():  # Ctrl-C ends the call too, before its connection is closed
                with contextlib.suppress(TimeoutError):
                    asyncio.run_coroutine_threadsafe(_others_end(), self._loop).result(STOP_SECONDS)
            raise

    def _each(self, items: AsyncIterator[T]) -> Iterator[T]:
        """The items of an asynchronous generator; closes the generator when the caller stops iterating."""

        async def following() -> T | None:
            return await anext(items, None)

        try:
            while (item := self._do(following())) is not None:
                yield item
        finally:
            self._do(items.aclose())  # type: ignore[attr-defined]

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()


async def _others_end() -> None:
    """Return when no other task of this loop runs; their errors are of no interest."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)
