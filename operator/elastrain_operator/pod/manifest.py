"""Spec and ordinal → pod manifest. Pure; golden-tested."""

from __future__ import annotations

import base64
from collections.abc import Collection
from typing import Any

from elastrain.api import names
from elastrain_operator.config import OperatorConfig, WorkerEtcd
from elastrain_operator.facts import DEFAULT_GRACE, DRAIN_MARGIN, JobRef, Slot
from elastrain_operator.pod import defaults, nodecheck, security
from elastrain_operator.pod.template import version
from elastrain_resource import podfields, podshape
from elastrain_resource.accelerators import AcceleratorUnclear, accelerator, extended
from elastrain_resource.job import JobSpec, trainer_container

SECRET_MOUNT = "/etc/elastrain/etcd"  # noqa: S105 - a directory
SECRET_VOLUME = "elastrain-etcd"  # noqa: S105 - a volume's name
_EVICTABLE = {k: v for k, v in defaults.evictable(keep=False).items() if v is not None}


class TemplateInvalid(ValueError):
    """The template cannot become a worker; the message names the field."""


def pod_name(job: JobRef, ordinal: int) -> str:
    """The name of the worker with this ordinal."""
    return f"{job.name}-{ordinal}"


def pod(
    job: JobRef,
    spec: JobSpec,
    ordinal: int,
    config: OperatorConfig,
    keep_off: Collection[str] = (),
    *,
    stands_by: bool = False,
    slot: Slot | None = None,
) -> dict[str, Any]:
    """Manifest of worker ``ordinal``, which avoids the nodes ``keep_off`` (names). ``stands_by``: it will be a spare.

    ``slot``: its group and place there; None: it has no group.

    Each field of the template has its rule in :mod:`elastrain_resource.podfields`. Raises :class:`TemplateInvalid`.
    """
    template, trainer = _checked(spec.template)
    body = template["spec"]
    body["restartPolicy"] = "Never"
    body.setdefault("enableServiceLinks", False)
    body.setdefault("automountServiceAccountToken", False)
    security.restrict(body)
    _furnish(body, trainer, spec, job)
    nodecheck.keep_off(body, keep_off)
    if stands_by:
        defaults.apart(body, job.uid)
    grace = body.get("terminationGracePeriodSeconds")
    _make_trainer(trainer, _environment(job, spec, config, DEFAULT_GRACE if grace is None else float(grace)))
    _mount_credentials(body, trainer, _secret_name(job, config.worker_etcd))
    nodecheck.let_meet(body, trainer, spec.preflight, SECRET_MOUNT)
    own = labels(job, ordinal, spec) | ({names.LABEL_USES: "true"} if _uses(spec.template["spec"]) else {})
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(template, job, ordinal, own), "spec": body}
    return made if slot is None else grouped(made, job, spec, slot)


def _metadata(template: dict[str, Any], job: JobRef, ordinal: int, own: dict[str, str]) -> dict[str, Any]:
    """Of worker ``ordinal``, with its ``own`` labels and what the template adds."""
    metadata = template.get("metadata") or {}
    return {
        **{k: v for k, v in metadata.items() if k == "finalizers"},
        # A new worker holds nothing; without the annotation, cluster autoscaler would never remove its node.
        "annotations": {
            **({} if defaults.decides_evictions(template) else _EVICTABLE),
            **(metadata.get("annotations") or {}),
            names.CONTAINERS_NOTE: _containers(template),
        },
        "name": pod_name(job, ordinal),
        "namespace": job.namespace,
        "labels": {**(metadata.get("labels") or {}), **own},
        "ownerReferences": [owner(job)],
    }


def _uses(body: dict[str, Any]) -> bool:
    """Whether a template may name a service account, a Secret, a claim or a path of the host. The API server compares
    these workers, and only these, with their template (``admission.yaml`` of the chart)."""
    if any(body.get(name) not in (None, "", "default") for name in ("serviceAccountName", "serviceAccount")):
        return True
    if any(set(volume) - {"name", "emptyDir", "configMap", "downwardAPI"} for volume in body.get("volumes") or []):
        return True
    containers = [*body["containers"], *(body.get("initContainers") or [])]
    return any(c.get("envFrom") or any(e.get("valueFrom") for e in c.get("env") or []) for c in containers)


def _containers(template: dict[str, Any]) -> str:
    """The annotation that names the template's containers, by which those that admission adds are known."""
    body, trainer = template["spec"], trainer_container(template)["name"]
    every = (c["name"] for field in ("containers", "initContainers") for c in body.get(field) or [])
    return ",".join([trainer, *(name for name in every if name != trainer)])


def grouped(manifest: dict[str, Any], job: JobRef, spec: JobSpec, slot: Slot) -> dict[str, Any]:
    """``manifest`` for a group and a place in it. A template with pod affinity keeps its own."""
    metadata = manifest["metadata"]
    place = {names.LABEL_GROUP: str(slot.group), names.LABEL_PLACE: str(slot.place)}
    body = dict(manifest["spec"])
    topology = spec.parallelism.topology_key if spec.parallelism else None
    if topology and "podAffinity" not in (spec.template["spec"].get("affinity") or {}):
        defaults.together(body, {names.LABEL_JOB_UID: job.uid, names.LABEL_GROUP: place[names.LABEL_GROUP]}, topology)
    return {**manifest, "metadata": {**metadata, "labels": {**metadata["labels"], **place}}, "spec": body}


def sibling(manifest: dict[str, Any], job: JobRef, ordinal: int, *, stands_by: bool = False) -> dict[str, Any]:
    """The manifest of another worker, from one that :func:`pod` made for the same job, spec and nodes: workers differ
    in name and ordinal, and spares (``stands_by``) in the preferred nodes. All other fields are shared with
    ``manifest``. :func:`grouped` changes the group."""
    metadata = manifest["metadata"]
    labelled = {**metadata["labels"], names.LABEL_ORDINAL: str(ordinal)}
    body = manifest["spec"]
    if stands_by:
        body = dict(body)
        defaults.apart(body, job.uid)
    return {**manifest, "metadata": {**metadata, "name": pod_name(job, ordinal), "labels": labelled}, "spec": body}


def secret(job: JobRef, user: str, password: str, ca: bytes) -> dict[str, Any]:
    """Manifest of the Secret with the etcd credentials of a job's workers. The garbage collector deletes it with the
    job."""
    values = {"username": user.encode(), "password": password.encode(), "ca.crt": ca}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": owned(job, secret_name(job)),
        "data": {name: base64.b64encode(value).decode() for name, value in values.items()},
    }


def owned(job: JobRef, name: str) -> dict[str, Any]:
    """The metadata of an object that belongs to a job, other than a pod. The garbage collector deletes it with the
    job."""
    labels = {names.LABEL_JOB: job.name, names.LABEL_JOB_UID: job.uid, names.LABEL_MANAGED_BY: names.MANAGED_BY}
    return {"name": name, "namespace": job.namespace, "labels": labels, "ownerReferences": [owner(job)]}


def _checked(template: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A copy of ``template`` to be changed, and its training container."""
    if wrong := podshape.problems(template):
        raise TemplateInvalid("; ".join(wrong))
    try:
        name = trainer_container(template)["name"]
    except ValueError as error:
        raise TemplateInvalid(str(error)) from error
    if refused := podfields.refusals(template, name):
        raise TemplateInvalid("; ".join(refused))
    copy = _without_nulls(template)
    return copy, next(c for c in copy["spec"]["containers"] if c["name"] == name)


def _without_nulls(value: Any) -> Any:
    """A copy without absent fields: Kubernetes reads null as absent everywhere."""
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def _furnish(body: dict[str, Any], trainer: dict[str, Any], spec: JobSpec, job: JobRef) -> None:
    """Defaults that torch needs and the template does not set."""
    devices = extended(trainer)
    defaults.shared_memory(body, trainer)
    defaults.tolerate(body, devices)
    defaults.last_words(body, trainer)
    defaults.resolve_services(body)
    if not devices:
        defaults.spread(body, job.uid)
    nodecheck.check_first(body, trainer, spec.preflight, _accelerators(trainer, spec))


def labels(job: JobRef, ordinal: int, spec: JobSpec) -> dict[str, str]:
    """Labels of a worker pod."""
    return {
        names.LABEL_JOB: job.name,
        names.LABEL_JOB_UID: job.uid,
        names.LABEL_ORDINAL: str(ordinal),
        names.LABEL_TEMPLATE: version(spec.template),
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
    }


def owner(job: JobRef) -> dict[str, Any]:
    """Makes the garbage collector delete pods after their job; never blocks the job's deletion."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def _make_trainer(trainer: dict[str, Any], environment: list[dict[str, Any]]) -> None:
    command, args = trainer.get("command") or [], trainer.get("args") or []
    if not command and not args:
        raise TemplateInvalid(
            f"spec.template.spec.containers[{trainer['name']}].command: must be set: elastrain starts its agent before "
            "that command and cannot see the image's own entrypoint"
        )
    trainer["command"] = [*names.AGENT, *command]
    ours = {e["name"] for e in environment}
    # Ours come first, so that the template may refer to them as $(NAME).
    trainer["env"] = [*environment, *(e for e in trainer.get("env") or [] if e.get("name") not in ours)]
    trainer["terminationMessagePath"] = names.DEFAULT_TERMINATION_LOG
    trainer["terminationMessagePolicy"] = "File"


def _environment(job: JobRef, spec: JobSpec, config: OperatorConfig, grace: float) -> list[dict[str, Any]]:
    etcd = config.worker_etcd
    values: dict[str, str] = {
        names.ENV_NAMESPACE: job.namespace,
        names.ENV_JOB: job.name,
        names.ENV_JOB_UID: job.uid,
        names.ENV_NPROC: str(_ranks(spec)),
        names.ENV_LEASE_TTL: str(config.lease_ttl),
        names.ENV_DRAIN_TIMEOUT: f"{max(grace - DRAIN_MARGIN, 1.0):g}",
        names.ENV_ETCD_ENDPOINTS: etcd.endpoints,
        **spec.rank_settings(_ranks(spec)).to_environment(),
    }
    if etcd.user:
        values[names.ENV_ETCD_PASSWORD_FILE] = f"{SECRET_MOUNT}/password"
    if etcd.ca:
        values[names.ENV_ETCD_CA] = f"{SECRET_MOUNT}/ca.crt"
    if etcd.certificate:
        values[names.ENV_ETCD_CERT] = f"{SECRET_MOUNT}/tls.crt"
        values[names.ENV_ETCD_KEY] = f"{SECRET_MOUNT}/tls.key"
    downward = {
        names.ENV_WORKER: "metadata.name",
        names.ENV_NODE: "spec.nodeName",
        names.ENV_POD_UID: "metadata.uid",
        names.ENV_ADDRESS: "status.podIP",
    }
    if spec.group_size > 1:
        downward[names.ENV_GROUP] = f"metadata.labels['{names.LABEL_GROUP}']"
        downward[names.ENV_PLACE] = f"metadata.labels['{names.LABEL_PLACE}']"
    environment: list[dict[str, Any]] = [{"name": k, "value": v} for k, v in values.items()]
    environment += [{"name": k, "valueFrom": {"fieldRef": {"fieldPath": v}}} for k, v in downward.items()]
    if etcd.user:
        source = {"secretKeyRef": {"name": _secret_name(job, etcd), "key": "username"}}
        environment.append({"name": names.ENV_ETCD_USERNAME, "valueFrom": source})
    return environment


def _accelerators(trainer: dict[str, Any], spec: JobSpec) -> int:
    """Number that the pre-flight check must find; 0 if unknown."""
    try:
        found = accelerator(trainer, spec.accelerator)
    except AcceleratorUnclear:
        return 0
    return found.count if found else 0


def _ranks(spec: JobSpec) -> int:
    try:
        return spec.ranks_per_worker
    except AcceleratorUnclear as error:
        raise TemplateInvalid(str(error)) from error


def _secret_name(job: JobRef, etcd: WorkerEtcd) -> str:
    """Name of the Secret that the job's workers mount; empty: none."""
    return secret_name(job) if etcd.per_job else etcd.secret


def _mount_credentials(body: dict[str, Any], trainer: dict[str, Any], secret: str) -> None:
    if not secret:
        return
    # Readable by every user, since the container's user is unknown; only the trainer container mounts the volume.
    volume = {"name": SECRET_VOLUME, "secret": {"secretName": secret, "defaultMode": 0o444}}
    body["volumes"] = [*(body.get("volumes") or []), volume]
    mount = {"name": SECRET_VOLUME, "mountPath": SECRET_MOUNT, "readOnly": True}
    trainer["volumeMounts"] = [*(trainer.get("volumeMounts") or []), mount]


def secret_name(job: JobRef) -> str:
    """Name of the Secret with a job's credentials; a job's name has at most 50 characters."""
    return f"{job.name}-etcd-{job.uid[:8]}"
