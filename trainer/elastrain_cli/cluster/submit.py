"""``submit``: creates a job from a manifest or from a training script."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from elastrain_cli.client import ClusterError
from elastrain_cli.client.asynchronous import ENDED
from elastrain_cli.cluster import compose
from elastrain_cli.cluster.output import Misused, Place, answers
from elastrain_cli.shell import stamp, view
from elastrain_cli.shell.printing import document, print_text
from elastrain_resource.manifest import load_for_cluster, loads

NOTICE_SECONDS = view.UNSEEN_SECONDS
"""Seconds that ``submit`` waits for the operator to observe the job."""
PHASES = ("Pending", "Running", "Rescaling", "Suspended", *ENDED)


@dataclass(frozen=True, slots=True)
class ScriptJob:
    """The options of ``submit`` for a script; for a manifest they must be absent."""

    name: str | None
    image: str | None
    sizes: tuple[int, int | None, int | None]
    limits: tuple[str, ...]
    arguments: tuple[str, ...]


@answers
def submit(place: Place, file: Path, asked: ScriptJob, *, dry_run: bool) -> int:
    """``elastrain submit``; returns the exit code."""
    if file.suffix == ".py":
        body, files = _of_script(file, asked)
    else:
        if asked.image or asked.name or asked.limits or asked.arguments or asked.sizes != (1, None, None):
            raise Misused(f"{file}: is a manifest; name, image, sizes and arguments belong into the file")
        body, files = document(load_for_cluster(file)), {}
    name = body["metadata"]["name"]
    if dry_run:
        documents = [body]
        if files:
            metadata = {"name": compose.files_name(name)}
            documents.insert(0, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files})
        print_text(yaml.safe_dump_all(documents, sort_keys=False))
        return 0
    with place.jobs() as jobs:
        job = jobs.submit(body)
        if files:
            try:
                jobs.add_files(job, compose.files_name(name), files)
            except ClusterError:
                jobs.delete(name)  # a job without its script would wait forever
                raise
        elsewhere = bool(place.namespace) or job.namespace != jobs.namespace
    where = f" -n {job.namespace}" if elsewhere else ""
    for script, text in files.items():
        if line := stamp.hint(script, text.encode()):
            print(line, file=sys.stderr)  # noqa: T201
    print_text(f"{name}: submitted to namespace {job.namespace}; elastrain watch {name}{where}")
    _await_operator(Place(job.namespace, place.context), name)
    return 0


# ---- inside --------------------------------------------------------------------------------------------------------
def _await_operator(place: Place, name: str) -> None:
    """Print a warning if no operator observes the new job in time. The job stays submitted."""
    try:
        with place.jobs() as jobs:
            jobs.wait(name, until=PHASES, timeout_seconds=NOTICE_SECONDS)
    except TimeoutError:
        print(  # noqa: T201
            f"{name}: no operator has observed the job within {NOTICE_SECONDS:g} s; the job starts when an operator "
            "runs. elastrain doctor names the cause",
            file=sys.stderr,
        )
    except ClusterError as error:
        print(f"{name}: the operator's state is unknown: {error}", file=sys.stderr)  # noqa: T201


def _of_script(file: Path, asked: ScriptJob) -> tuple[dict[str, Any], dict[str, str]]:
    """The job that runs the script, and the files of its ConfigMap."""
    least, most, replicas = asked.sizes
    if asked.image is None:
        raise Misused(f"{file}: is a script: --image must name an image with torch and elastrain")
    if most is None:
        raise Misused(f"{file}: is a script: --max must set the largest number of workers")
    try:
        script = file.read_text(encoding="utf-8")
    except OSError as error:
        raise Misused(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Misused(f"{file}: is not UTF-8 text: {error.reason}") from error
    pairs = [limit.partition("=") for limit in asked.limits]
    for key, equals, value in pairs:
        if not (key and equals and value):
            raise Misused(f"--limit {key}{equals}{value}: must be RESOURCE=N, as nvidia.com/gpu=1")
    body = compose.compose(
        asked.name or compose.job_name(file), script=script, file=file.name, arguments=asked.arguments,
        image=asked.image, sizes=(least, most, replicas), resources={key: value for key, _, value in pairs},
    )  # fmt: skip
    loads(
        yaml.safe_dump(body), source=f"the job for {file}"
    )  # the same rules as for a manifest, before anything is sent
    return body, {file.name: script}
