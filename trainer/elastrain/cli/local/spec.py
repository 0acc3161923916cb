"""What a manifest means on this machine: the command, environment and directories of its workers. Pure but for looking
at which directories exist."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastrain.api.job import CheckpointSpec, ElasticTrainingJob, trainer_container
from elastrain.cli.local.devices import cuda_devices

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@dataclass(frozen=True, slots=True)
class LocalSpec:
    """Everything local mode takes from a manifest."""

    name: str
    namespace: str
    min: int
    max: int
    desired: int
    spares: int
    """Workers that stand by beside those."""
    nproc: int
    backoff_limit: int
    command: tuple[str, ...]
    environment: dict[str, str]
    """What the manifest sets; the rest comes from elastrain's own environment."""
    directory: Path
    """Working directory of the workers."""
    checkpoint: CheckpointSpec | None
    """With an absolute path on this machine."""
    state_dir: Path
    notes: tuple[str, ...] = ()
    """What differs from the cluster, for the user to know."""


def local_spec(
    job: ElasticTrainingJob,
    manifest_dir: Path,
    state_dir: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> LocalSpec:
    """Read ``job`` as it stands in a manifest in ``manifest_dir`` (absolute).

    ``variables`` replace or add to the container's environment, before anything refers to it.

    Images, volumes, resources and everything else that only a cluster has are ignored.
    """
    state = state_dir or manifest_dir / ".elastrain" / job.name
    container = trainer_container(job.spec.template)
    where = f"spec.template.spec.containers[{container.get('name', 0)}]"
    environment, notes = _environment(container.get("env") or [], where, variables or {})
    words = [expand(str(word), environment) for word in [*container["command"], *(container.get("args") or [])]]
    directory, note = _directory(container.get("workingDir"), manifest_dir, where)
    return LocalSpec(
        name=job.name,
        namespace=job.namespace,
        min=job.spec.min_replicas,
        max=job.spec.max_replicas,
        desired=job.spec.desired_replicas,
        spares=job.spec.warm_spares,
        nproc=_ranks(job.spec.nproc_per_node, environment),
        backoff_limit=job.spec.backoff_limit,
        command=tuple(words),
        environment=environment,
        directory=directory,
        checkpoint=_checkpoint(job.spec.checkpoint, manifest_dir, state),
        state_dir=state,
        notes=tuple(notes + note),
    )


def _ranks(nproc: int | str, environment: Mapping[str, str]) -> int:
    """A manifest's ``auto`` counts what this machine has, not what its limits ask a cluster for."""
    return nproc if isinstance(nproc, int) else max(cuda_devices({**os.environ, **environment}), 1)


def expand(text: str, environment: Mapping[str, str]) -> str:
    """``$(NAME)`` as Kubernetes expands it: ``$$`` is a dollar, unknown names are left as they are."""
    return _REFERENCE.sub(lambda m: "$" if m[0] == "$$" else environment.get(m[1], m[0]), text)


def _environment(
    entries: list[dict[str, Any]], where: str, variables: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    environment: dict[str, str] = dict(variables)
    notes = []
    for entry in entries:
        name = str(entry.get("name", ""))
        if name in variables:
            continue
        if "valueFrom" in entry:
            notes.append(f"{where}.env[{name}]: valueFrom needs a cluster; not set here")
        else:
            environment[name] = expand(str(entry.get("value") or ""), environment)
    return environment, notes


def _directory(wanted: str | None, manifest_dir: Path, where: str) -> tuple[Path, list[str]]:
    """``workingDir`` if this machine has it, else where the manifest is: images keep their code elsewhere."""
    if wanted is None:
        return manifest_dir, []
    directory = manifest_dir / wanted
    if directory.is_dir():
        return directory, []
    return manifest_dir, [f"{where}.workingDir: {wanted} does not exist here; using {manifest_dir}"]


def _checkpoint(spec: CheckpointSpec | None, manifest_dir: Path, state_dir: Path) -> CheckpointSpec | None:
    """An absolute path is a volume's mount point in the cluster. Where this machine does not have it, it is placed
    below the state directory."""
    if spec is None:
        return None
    path = manifest_dir / spec.path
    if Path(spec.path).is_absolute() and not (path.is_dir() and os.access(path, os.W_OK)):
        path = state_dir / "volumes" / spec.path.lstrip("/")
    return spec.model_copy(update={"path": str(path.resolve())})


def worker_environment(spec: LocalSpec, own: Mapping[str, str], elastrain: Mapping[str, str]) -> dict[str, str]:
    """Environment of one worker's agent. Pure.

    ``python`` means the interpreter that runs elastrain, as it would in the image; workers that share this machine take
    one thread each unless told otherwise.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), *filter(None, [own.get("PATH")])])
    return {"OMP_NUM_THREADS": "1", **own, "PATH": path, **spec.environment, **elastrain}
