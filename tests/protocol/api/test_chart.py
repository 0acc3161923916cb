"""The rendered Helm chart: what it installs, its permissions, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from charts import CREDENTIALS, EXTERNAL, VALUE_SETS, Manifests, Render, environment, one, operator, pod_specs
from elastrain.api import names
from elastrain_operator.__main__ import FLAGS
from elastrain_resource.schema.crd import crd, set_crd
from network_policy import matches

ROOT = Path(__file__).parents[3]


@pytest.fixture(params=VALUE_SETS.values(), ids=VALUE_SETS.keys())
def manifests(request: pytest.FixtureRequest, rendered: Render) -> Manifests:
    return rendered(*request.param)


# ---- every set of values ---------------------------------------------------------------------------------------------
def test_lint_finds_nothing(helm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    result = helm("lint", "--strict", "charts/elastrain")
    assert result.returncode == 0, result.stdout


def test_pods_meet_the_restricted_pod_security_standard(manifests: Manifests) -> None:
    for spec in pod_specs(manifests):
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert all({"emptyDir", "secret", "configMap"} & volume.keys() for volume in spec.get("volumes", ()))
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_every_container_has_a_pinned_image_a_probe_and_resources(manifests: Manifests) -> None:
    for spec in pod_specs(manifests):
        containers = (*spec.get("initContainers", ()), *spec["containers"])
        for container in containers:
            assert re.fullmatch(r"\S+:[0-9][^:/]*", container["image"]), container["image"]
            assert container["resources"]["limits"]["memory"]
        assert any(container.get("livenessProbe") for container in containers)


def test_volumes_are_those_that_are_mounted(manifests: Manifests) -> None:
    for manifest in manifests:
        if manifest["kind"] not in ("Deployment", "StatefulSet"):
            continue
        spec = manifest["spec"]["template"]["spec"]
        claims = [c["metadata"]["name"] for c in manifest["spec"].get("volumeClaimTemplates", ())]
        containers = (*spec.get("initContainers", ()), *spec["containers"])
        mounted = {m["name"] for c in containers for m in c.get("volumeMounts", ())}
        assert sorted(mounted) == sorted([*claims, *(v["name"] for v in spec.get("volumes", ()))])


def test_namespaced_objects_name_their_namespace(manifests: Manifests) -> None:
    for manifest in manifests:
        if not manifest["kind"].startswith(("Cluster", "Custom", "ValidatingAdmission")):
            namespace = manifest["metadata"]["namespace"]
            assert namespace in ("training", "team-a", "team-b", "kube-system"), manifest["metadata"]


def test_services_and_policies_select_the_pods_they_are_for(manifests: Manifests) -> None:
    labels = {
        m["metadata"]["labels"]["app.kubernetes.io/component"]: m["spec"]["template"]["metadata"]["labels"]
        for m in manifests
        if "template" in m.get("spec", {})
    } | {"workers": {names.LABEL_JOB_UID: "0f0e"}}
    for manifest in manifests:
        selected = labels.get(manifest["metadata"].get("labels", {}).get("app.kubernetes.io/component", ""), {})
        if manifest["kind"] == "Service":
            assert manifest["spec"]["selector"].items() <= selected.items()
        if manifest["kind"] == "PodDisruptionBudget":
            assert manifest["spec"]["selector"]["matchLabels"].items() <= selected.items()
        if manifest["kind"] == "NetworkPolicy":
            assert matches(manifest["spec"]["podSelector"], selected)


def test_the_page_says_what_a_default_installation_has(rendered: Render) -> None:
    page = (ROOT / "docs/operations.md").read_text().partition("### What is installed")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| ([\w, ]+) \| (\d+) \| (yes)? ?\|", page, re.MULTILINE)
    installed = rendered()
    for kinds, number, cluster in rows:
        found = [m for m in installed if m["kind"] in kinds.split(", ")]
        assert len(found) == int(number), kinds
        assert {"namespace" in m["metadata"] for m in found} == {not cluster}, kinds
    assert sum(int(number) for _, number, _ in rows) == len(installed) <= 33, "what is not on the page"


# ---- the CRD ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("definition", [crd(), set_crd()], ids=["job", "set"])
def test_crd_matches_the_models_and_stays_at_uninstall(rendered: Render, definition: dict[str, Any]) -> None:
    installed = one(rendered(), "CustomResourceDefinition", definition["metadata"]["name"])
    assert installed["spec"] == definition["spec"]
    assert installed["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_crd_is_removed_at_uninstall_if_keep_is_false(rendered: Render) -> None:
    definitions = [m for m in rendered("crds.keep=false") if m["kind"] == "CustomResourceDefinition"]
    assert ["annotations" in m["metadata"] for m in definitions] == [False, False]


def test_crd_is_left_out_if_install_is_false(rendered: Render) -> None:
    assert not [m for m in rendered("crds.install=false") if m["kind"] == "CustomResourceDefinition"]


# ---- etcd ------------------------------------------------------------------------------------------------------------
def test_operator_and_workers_use_the_charts_etcd(rendered: Render) -> None:
    manifests = rendered()
    (service,) = [m for m in manifests if m["kind"] == "Service" and m["metadata"]["name"].endswith("-etcd")]
    endpoint = f"{service['metadata']['name']}.training.svc:{service['spec']['ports'][0]['port']}"
    assert environment(manifests)[names.ENV_ETCD_ENDPOINTS] == endpoint


def test_no_etcd_is_installed_if_endpoints_name_one(rendered: Render) -> None:
    manifests = rendered(*EXTERNAL, "etcd.endpoints[1]=[fd00::1]:2379")
    assert not [m for m in manifests if "etcd" in m["metadata"]["name"]]
    assert environment(manifests)[names.ENV_ETCD_ENDPOINTS] == "etcd.example:2379,[fd00::1]:2379"


def test_credentials_are_mounted_and_named_to_workers(rendered: Render) -> None:
    manifests = rendered(*CREDENTIALS)
    env = environment(manifests)
    (container,) = operator(manifests)["spec"]["template"]["spec"]["containers"]
    mount = container["volumeMounts"][0]["mountPath"]
    assert env["ELASTRAIN_WORKER_ETCD_SECRET"] == "etcd"
    assert env[names.ENV_ETCD_CA] == f"{mount}/ca.crt"
    assert (env[names.ENV_ETCD_CERT], env[names.ENV_ETCD_KEY]) == (f"{mount}/tls.crt", f"{mount}/tls.key")
    assert env[names.ENV_ETCD_PASSWORD_FILE] == f"{mount}/password"
    assert env[names.ENV_ETCD_USERNAME] == {"secretKeyRef": {"name": "etcd", "key": "username"}}


@pytest.mark.parametrize(
    "settings", [(), CREDENTIALS, VALUE_SETS["per-job"]], ids=["defaults", "credentials", "per-job"]
)
def test_operator_knows_every_variable_it_is_given(rendered: Render, settings: tuple[str, ...]) -> None:
    assert set(environment(rendered(*settings))) <= {f"ELASTRAIN_{flag.name.upper()}" for flag in FLAGS}


# ---- metrics ---------------------------------------------------------------------------------------------------------
MONITORED = (
    "metrics.serviceMonitor.enabled=true",
    "metrics.prometheusRule.enabled=true",
    "metrics.dashboard.enabled=true",
)


@pytest.fixture
def monitored(helm: Callable[..., subprocess.CompletedProcess[str]]) -> Manifests:
    """The chart with everything about metrics, on a cluster with the Prometheus operator."""
    kinds = [f"--api-versions=monitoring.coreos.com/v1/{kind}" for kind in ("ServiceMonitor", "PrometheusRule")]
    options = [option for setting in MONITORED for option in ("--set", setting)]
    result = helm(
        "template", "demo", "charts/elastrain", "--namespace=training", "--kube-version=1.34.0", *kinds, *options
    )
    assert result.returncode == 0, result.stderr
    return [document for document in yaml.safe_load_all(result.stdout) if document]


def test_operator_serves_metrics_on_the_port_that_the_service_names(rendered: Render) -> None:
    manifests = rendered()
    (container,) = operator(manifests)["spec"]["template"]["spec"]["containers"]
    (port,) = one(manifests, "Service", "metrics")["spec"]["ports"]
    assert {"name": port["targetPort"], "containerPort": port["port"]} in container["ports"]
    assert environment(manifests)["ELASTRAIN_METRICS_PORT"] == "8081"


def test_no_metrics_are_served_if_they_are_off(rendered: Render) -> None:
    manifests = rendered("metrics.enabled=false")
    assert environment(manifests)["ELASTRAIN_METRICS_PORT"] == "0"
    assert not [m for m in manifests if m["kind"] == "Service" and "metrics" in m["metadata"]["name"]]


def test_service_monitor_finds_the_service_and_keeps_the_jobs_labels(monitored: Manifests) -> None:
    monitor, service = one(monitored, "ServiceMonitor")["spec"], one(monitored, "Service", "metrics")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert (
        not monitor["selector"]["matchLabels"].items()
        <= one(monitored, "StatefulSet", "etcd")["metadata"]["labels"].items()
    )
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert endpoint["honorLabels"] is True
    assert monitor["namespaceSelector"] == {"matchNames": [service["metadata"]["namespace"]]}


def test_rules_and_dashboard_are_those_of_the_files(monitored: Manifests) -> None:
    files = ROOT / "charts/elastrain/files"
    assert one(monitored, "PrometheusRule")["spec"] == yaml.safe_load((files / "rules.yaml").read_text())
    config_map = one(monitored, "ConfigMap", "dashboard")
    assert json.loads(config_map["data"]["elastrain.json"]) == json.loads((files / "dashboard.json").read_text())
    assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"


@pytest.mark.parametrize("what", ["serviceMonitor", "prometheusRule"])
def test_monitoring_without_metrics_is_refused(
    helm: Callable[..., subprocess.CompletedProcess[str]], what: str
) -> None:
    settings = ("--set", "metrics.enabled=false", "--set", f"metrics.{what}.enabled=true")
    result = helm("template", "demo", "charts/elastrain", "--kube-version=1.34.0", *settings)
    assert result.returncode != 0
    assert "metrics.enabled is false" in result.stderr


# ---- values ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("setting", "place"),
    [
        ("operater.leaseTTL=5", "operater"),
        ("operator.leasTTL=5", "leasTTL"),
        ("operator.leaseTTL=1", "/operator/leaseTTL"),
        ("operator.replicas=0", "/operator/replicas"),
        ("operator.leaseSeconds=2", "/operator/leaseSeconds"),
        ("operator.logLevel=loud", "/operator/logLevel"),
        ("operator.image.repository=a:b", "/operator/image/repository"),
        ("etcd.image.tag=", "/etcd/image/tag"),
        ("etcd.endpoints[0]=http://etcd:2379", "/etcd/endpoints/0"),
        ("etcd.credentials.secretName=etcd", "/etcd/endpoints"),
        ("etcd.quotaBytes=100", "/etcd/quotaBytes"),
        ("etcd.tls.mode=on", "/etcd/tls/mode"),
        ("etcd.tls.mode=existing", "/etcd/tls/secretName"),
        ("etcd.credentials.perJob=true", "/etcd/credentials"),
        ("watchNamespaces[0]=Team_A", "/watchNamespaces/0"),
        ("crds.keep=perhaps", "/crds/keep"),
        ("metrics.serviceMonitor.label=x", "label"),
        ("metrics.serviceMonitor.enabled=true", "install the Prometheus operator first"),
        ("metrics.prometheusRule.enabled=true", "install the Prometheus operator first"),
    ],
)
def test_wrong_value_is_refused_by_name(
    helm: Callable[..., subprocess.CompletedProcess[str]], setting: str, place: str
) -> None:
    result = helm("template", "demo", "charts/elastrain", "--kube-version=1.34.0", "--set", setting)
    assert result.returncode != 0
    assert place in result.stderr


def test_every_value_is_in_the_schema() -> None:
    schema = yaml.safe_load((ROOT / "charts/elastrain/values.schema.json").read_text())

    def compare(values: dict[str, Any], schema: dict[str, Any], path: str) -> None:
        for name, value in values.items():
            assert name in schema["properties"], f"{path}.{name}"
            if schema["properties"][name].get("additionalProperties") is False:
                compare(value, schema["properties"][name], f"{path}.{name}")

    compare(yaml.safe_load((ROOT / "charts/elastrain/values.yaml").read_text()), schema, "")


def test_chart_has_the_projects_version() -> None:
    chart = yaml.safe_load((ROOT / "charts/elastrain/Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == chart["version"] == project["version"]


@pytest.mark.parametrize(
    ("settings", "image"),
    [
        ((), "registry.example/elastrain/operator:0.1.0"),
        (("operator.image.tag=v7",), "registry.example/elastrain/operator:v7"),
        (("operator.image.digest=sha256:" + 64 * "a",), "registry.example/elastrain/operator@sha256:" + 64 * "a"),
        (
            ("operator.image.tag=v7", "operator.image.digest=sha256:" + 64 * "a"),
            "registry.example/elastrain/operator:v7@sha256:" + 64 * "a",
        ),
    ],
    ids=["default", "tag", "digest", "both"],
)
def test_images_are_named_by_tag_or_digest(rendered: Render, settings: tuple[str, ...], image: str) -> None:
    (container,) = operator(rendered(*settings))["spec"]["template"]["spec"]["containers"]
    assert container["image"] == image


def test_chart_names_no_image_that_another_could_publish_under_its_name(
    helm: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    made = helm("template", "demo", "charts/elastrain", "--kube-version=1.34.0", "--set=operator.image.repository=")
    assert made.returncode != 0
    assert "docker build --target operator" in made.stderr
