"""The local form of a manifest: command, environment and directories of its workers. Pure, except that it tests which
directories exist."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastrain.api.settings import RankSettings
from elastrain_cli.local.devices import cuda_devices
from elastrain_resource.job import CheckpointSpec, ElasticTrainingJob, trainer_container

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


@dataclass(frozen=True, slots=True)
class LocalSpec:
    """The fields of a manifest that local mode uses."""

    name: str
    namespace: str
    min: int
    max: int
    desired: int
    spares: int
    """Number of warm spares."""
    nproc: int
    ranks: RankSettings
    """With paths of checkpoints that are absolute and valid on this machine."""
    backoff_limit: int
    command: tuple[str, ...]
    environment: dict[str, str]
    """Variables of the manifest; workers inherit the rest from elastrain's own environment."""
    directory: Path
    """Working directory of the workers."""
    state_dir: Path
    notes: tuple[str, ...] = ()
    """Differences from the cluster, for the user."""


def local_spec(
    job: ElasticTrainingJob,
    manifest_dir: Path,
    state_dir: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> LocalSpec:
    """The local form of ``job``; ``manifest_dir`` (absolute) is the directory of its manifest.

    ``variables`` override the container's environment before references to it are expanded.

    Ignores images, volumes, resources and all other fields that only a cluster can serve.
    """
    state = state_dir or manifest_dir / ".elastrain" / job.name
    container = trainer_container(job.spec.template)
    where = f"spec.template.spec.containers[{container.get('name', 0)}]"
    environment, notes = _environment(container.get("env") or [], where, variables or {})
    words = [expand(str(word), environment) for word in [*container["command"], *(container.get("args") or [])]]
    directory, note = _directory(container.get("workingDir"), manifest_dir, where)
    # A group of several workers is one here, with the ranks of all.
    nproc = _ranks(job.spec.nproc_per_node, environment) * job.spec.group_size
    checkpoint = _checkpoint(job.spec.checkpoint, manifest_dir, state)
    return LocalSpec(
        name=job.name,
        namespace=job.namespace,
        min=job.spec.min_replicas,
        max=job.spec.max_replicas,
        desired=job.spec.desired_replicas,
        spares=job.spec.warm_spares,
        nproc=nproc,
        ranks=job.spec.rank_settings(nproc).model_copy(update={"checkpoint": checkpoint}),
        backoff_limit=job.spec.backoff_limit,
        command=tuple(words),
        environment=environment,
        directory=directory,
        state_dir=state,
        notes=tuple(notes + note),
    )


def _ranks(nproc: int | str, environment: Mapping[str, str]) -> int:
    """Ranks of a worker. ``auto`` counts the devices of this machine and ignores the limits."""
    return nproc if isinstance(nproc, int) else max(cuda_devices({**os.environ, **environment}), 1)


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Expand ``$(NAME)`` as Kubernetes does: ``$$`` is a dollar sign, and unknown names stay unchanged."""
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
            notes.append(f"{where}.env[{name}]: valueFrom needs a cluster; the variable is not set")
        else:
            environment[name] = expand(str(entry.get("value") or ""), environment)
    return environment, notes


def _directory(required: str | None, manifest_dir: Path, where: str) -> tuple[Path, list[str]]:
    """``workingDir`` if it exists on this machine, else the directory of the manifest: images keep their code
    elsewhere."""
    if required is None:
        return manifest_dir, []
    directory = manifest_dir / required
    if directory.is_dir():
        return directory, []
    return manifest_dir, [f"{where}.workingDir: {required} does not exist here; using {manifest_dir}"]


def _checkpoint(spec: CheckpointSpec | None, manifest_dir: Path, state_dir: Path) -> CheckpointSpec | None:
    """The specification with this machine's directories; URLs stay."""
    if spec is None:
        return None
    places: dict[str, object] = {"path": _place(spec.path, manifest_dir, state_dir)}
    if spec.archive is not None:
        path = _place(spec.archive.path, manifest_dir, state_dir)
        places["archive"] = spec.archive.model_copy(update={"path": path})
    return spec.model_copy(update=places)


def _place(place: str, manifest_dir: Path, state_dir: Path) -> str:
    """On a cluster an absolute path is a volume's mount point. If the path does not exist here, the checkpoint goes
    below the state directory."""
    if "://" in place:
        return place
    path = manifest_dir / place
    if Path(place).is_absolute() and not (path.is_dir() and os.access(path, os.W_OK)):
        path = state_dir / "volumes" / place.lstrip("/")
    return str(path.resolve())


def worker_environment(spec: LocalSpec, own: Mapping[str, str], elastrain: Mapping[str, str]) -> dict[str, str]:
    """Environment of one worker's agent. Pure.

    ``python`` means the interpreter that runs elastrain, as it would in the image; workers that share this machine take
    one thread each unless told otherwise.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), *filter(None, [own.get("PATH")])])
    return {"OMP_NUM_THREADS": "1", **own, "PATH": path, **spec.environment, **elastrain}
