"""Defaults of pods, and that the template takes precedence."""

from __future__ import annotations

import pytest

from elastrain.etcd import EtcdConfig
from elastrain_operator.config import OperatorConfig, WorkerEtcd
from elastrain_operator.facts import JobRef
from elastrain_operator.pod import defaults, manifest
from elastrain_operator.pod.manifest import TemplateInvalid

JOB = JobRef("team-a", "digits", "0f0e", 3)
CONFIG = OperatorConfig(etcd=EtcdConfig.of("etcd:2379"), worker_etcd=WorkerEtcd(endpoints="etcd:2379"))


@pytest.fixture
def worker(make_spec):
    """``worker(container={...}, pod={...}, **spec)``: pod spec and trainer container of a rendered worker."""

    def made(container=None, pod=None, **fields):
        trainer = {"name": "trainer", "image": "i", "command": ["python"], **(container or {})}
        template = {"spec": {"containers": [trainer], **(pod or {})}}
        body = manifest.pod(JOB, make_spec(template=template, **fields), 0, CONFIG)["spec"]
        return body, body["containers"][0]

    return made


def limits(**resources):
    return {"resources": {"limits": {k.replace("__", "/").replace("_", "."): v for k, v in resources.items()}}}


def variable(trainer, name):
    return next(e["value"] for e in trainer["env"] if e["name"] == name)


def shm(body):
    return next((v["emptyDir"] for v in body.get("volumes", []) if v["name"] == defaults.SHM_VOLUME), None)


# ---- ranks -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("resources", "ranks"),
    [({}, 1), ({"memory": "8Gi"}, 1), ({"nvidia_com__gpu": 8}, 8), ({"amd_com__gpu": "4"}, 4),
     ({"example_com__chip": 2}, 2), ({"nvidia_com__gpu": 0}, 1)],
)  # fmt: skip
def test_auto_is_one_rank_for_each_accelerator_and_one_without(worker, resources, ranks):
    _, trainer = worker(limits(**resources), nprocPerNode="auto")
    assert variable(trainer, "ELASTRAIN_NPROC_PER_NODE") == str(ranks)


def test_worker_is_refused_if_its_accelerator_is_ambiguous(worker):
    several = limits(example_com__chip=2, example_com__link=1)
    with pytest.raises(TemplateInvalid, match=r"example.com/chip, example.com/link.*spec\.accelerator"):
        worker(several, nprocPerNode="auto")
    _, trainer = worker(several, nprocPerNode=3)
    assert variable(trainer, "ELASTRAIN_NPROC_PER_NODE") == "3", "a number needs no accelerator"


# ---- shared memory ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("memory", "size"),
    [("16Gi", "8192Mi"), ("1G", "476Mi"), ("3000Mi", "1500Mi"), (4294967296, "2048Mi"), ("1.5Gi", "768Mi"),
     ("1Mi", "1Mi"), ("lots", None)],
)  # fmt: skip
def test_shared_memory_is_half_of_the_memory_limit(worker, memory, size):
    body, trainer = worker(limits(memory=memory))
    assert shm(body) == {"medium": "Memory"} | ({"sizeLimit": size} if size else {})
    assert {"name": defaults.SHM_VOLUME, "mountPath": "/dev/shm"} in trainer["volumeMounts"]


def test_shared_memory_is_the_nodes_default_without_a_limit(worker):
    assert shm(worker()[0]) == {"medium": "Memory"}


@pytest.mark.parametrize("path", ["/dev/shm", "/dev/shm/"])
def test_template_keeps_its_own_shared_memory(worker, path):
    mounts = [{"name": "mine", "mountPath": path}]
    body, trainer = worker({"volumeMounts": mounts}, {"volumes": [{"name": "mine", "emptyDir": {}}]})
    assert shm(body) is None
    assert trainer["volumeMounts"] == mounts


# ---- where pods go ---------------------------------------------------------------------------------------------------
def test_taint_named_after_the_accelerator_is_tolerated(worker):
    body, _ = worker(limits(nvidia_com__gpu=1), {"tolerations": [{"key": "spot", "operator": "Exists"}]})
    assert body["tolerations"] == [
        {"key": "spot", "operator": "Exists"},
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    ]


@pytest.mark.parametrize("own", [{"key": "nvidia.com/gpu", "value": "a100"}, {"operator": "Exists"}])
def test_template_keeps_its_own_toleration(worker, own):
    assert worker(limits(nvidia_com__gpu=1), {"tolerations": [own]})[0]["tolerations"] == [own]


def test_cpu_only_workers_prefer_different_hosts_and_others_do_not(worker):
    (constraint,) = worker()[0]["topologySpreadConstraints"]
    assert (constraint["topologyKey"], constraint["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    assert constraint["labelSelector"] == {"matchLabels": {"elastrain.dev/job-uid": "0f0e"}}
    assert "topologySpreadConstraints" not in worker(limits(nvidia_com__gpu=1))[0]
    assert worker(pod={"topologySpreadConstraints": []})[0]["topologySpreadConstraints"] == []
    assert "tolerations" not in worker()[0]


@pytest.mark.parametrize(
    ("container", "pod", "field"),
    [({"resources": "many"}, {}, "containers[0].resources"),
     ({"resources": {"limits": ["gpu"]}}, {}, "containers[0].resources.limits"),
     ({}, {"tolerations": "all"}, "tolerations"), ({}, {"tolerations": [None]}, "tolerations[0]"),
     ({"volumeMounts": {"a": "b"}}, {}, "containers[0].volumeMounts"),
     ({"resources": {"limits": {"memory": {}}}}, {}, "containers[0].resources.limits.memory")],
)  # fmt: skip
def test_wrong_shape_is_refused_by_name(worker, container, pod, field):
    with pytest.raises(manifest.TemplateInvalid) as refused:
        worker(container, pod, nprocPerNode="auto")
    assert str(refused.value).startswith(f"spec.template.spec.{field}: ")
