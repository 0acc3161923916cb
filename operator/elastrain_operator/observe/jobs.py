"""All jobs as the API server's watch shows them, and who is to be told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from elastrain_operator.kube.client import jobs_path
from elastrain_operator.observe.reflector import Reflector, Source

Job = Mapping[str, Any]
OnJob = Callable[[Job, bool], None]
"""Called with a job's object, and whether it is gone: else it is new or differs from what was shown before."""


def watch(source: Source, namespace: str, on_job: OnJob) -> Reflector[Job]:
    """The jobs of one namespace (empty: of all). What it last knew stays while the API server is silent."""

    def changed(before: Job | None, now: Job | None) -> None:
        if now is not None:
            on_job(now, False)
        elif before is not None:
            on_job(before, True)

    what = f"jobs of namespace {namespace}" if namespace else "jobs"
    return Reflector(source, jobs_path(namespace), what, parse=without_bulk, on_object=changed)


def without_bulk(body: Job) -> Job:
    """Without the record of who wrote which field, which is as large as all the rest."""
    return {**body, "metadata": {k: v for k, v in body["metadata"].items() if k != "managedFields"}}
