"""The chart's etcd: its form, and its containers as processes on loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chart_etcd import ChartEtcd
from charts import VALUE_SETS, Manifests, Render, one
from elastrain.etcd import EtcdClient, EtcdDenied, EtcdError
from elastrain_operator.users import EtcdUsers


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Callable[[Manifests], ChartEtcd]]:
    """``played(manifests)``: the etcd of these, not started."""
    made: list[ChartEtcd] = []

    def make(manifests: Manifests) -> ChartEtcd:
        made.append(ChartEtcd(manifests, tmp_path))
        return made[-1]

    yield make
    for etcd in made:
        etcd.stop()


def stateful(manifests: Manifests) -> dict[str, Any]:
    spec: dict[str, Any] = one(manifests, "StatefulSet")["spec"]
    return spec


# ---- its form --------------------------------------------------------------------------------------------------------
def test_etcd_survives_a_drain_by_default(rendered: Render) -> None:
    manifests = rendered()
    spec = stateful(manifests)
    assert spec["replicas"] == 3
    assert [claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]] == ["data"]
    (terms,) = spec["template"]["spec"]["affinity"]["podAntiAffinity"].values()
    assert [t["podAffinityTerm"]["topologyKey"] for t in terms] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]
    labels = spec["template"]["metadata"]["labels"]
    assert all(t["podAffinityTerm"]["labelSelector"]["matchLabels"] == labels for t in terms)
    budget = one(manifests, "PodDisruptionBudget", "etcd")["spec"]
    assert (budget["maxUnavailable"], budget["selector"]["matchLabels"]) == (1, labels)


@pytest.mark.parametrize("settings", [("etcd.replicas=1",), ("etcd.persistence.enabled=false",)])
def test_a_single_member_blocks_no_drain(rendered: Render, settings: tuple[str, ...]) -> None:
    manifests = rendered(*settings)
    assert stateful(manifests)["replicas"] == 1
    assert not [m for m in manifests if m["kind"] == "PodDisruptionBudget" and "etcd" in m["metadata"]["name"]]


def test_data_is_on_a_volume_unless_switched_off(rendered: Render) -> None:
    (claim,) = stateful(rendered(*VALUE_SETS["persistent"]))["volumeClaimTemplates"]
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    without = stateful(rendered("etcd.persistence.enabled=false"))
    assert "volumeClaimTemplates" not in without
    assert {"name": "data", "emptyDir": {}} in without["template"]["spec"]["volumes"]


def test_members_without_volumes_are_refused(helm: Callable[..., Any]) -> None:
    settings = ("--set=etcd.replicas=3", "--set=etcd.persistence.enabled=false", "--kube-version=1.34.0")
    result = helm("template", "demo", "charts/elastrain", *settings)
    assert result.returncode != 0
    assert "a member that loses its data cannot join the others again" in result.stderr


# ---- its containers --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("settings", [("etcd.replicas=1",), ("etcd.tls.mode=off", "etcd.replicas=1")])
def test_a_member_starts_with_the_charts_flags_and_answers_its_probes(
    rendered: Render, played: Callable[[Manifests], ChartEtcd], settings: tuple[str, ...]
) -> None:
    etcd = played(rendered(*settings))
    etcd.start()
    (member,) = etcd.members
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert member.answers(etcd.containers["etcd"][probe]["httpGet"]["path"]), "probes send no password"
    if "gateway" in etcd.containers:
        with EtcdClient(etcd.config()) as client:
            client.put("/x", b"1")


def test_three_members_keep_data_and_passwords_if_one_is_lost(
    rendered: Render, played: Callable[[Manifests], ChartEtcd], eventually: Callable[..., None]
) -> None:
    etcd = played(rendered())
    etcd.start()
    first, *others = etcd.members
    with EtcdClient(etcd.config(first)) as client:
        client.put("/x", b"1")
    first.stop()
    with EtcdClient(etcd.config(*others)) as client:
        eventually(lambda: written(client), what="the others to serve")
        assert client.get("/x").value == b"1"
    with EtcdClient(etcd.config(others[0], user="")) as client, pytest.raises(EtcdDenied):
        client.get("/x")
    etcd.start(first)
    with EtcdClient(etcd.config(first)) as client:
        assert client.get("/y").value == b"2"


def written(client: EtcdClient) -> bool:
    try:
        return client.put("/y", b"2") > 0
    except EtcdError:
        return False


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(("etcd.persistence.enabled=false",), id="one member"),
        pytest.param((), id="three members", marks=pytest.mark.nightly),
    ],
)
def test_no_client_becomes_root_of_an_etcd_that_starts_empty(
    rendered: Render, played: Callable[[Manifests], ChartEtcd], settings: tuple[str, ...]
) -> None:
    """The attack: a client tries from the first moment on to give root a password of its own."""
    etcd = played(rendered(*settings))
    over, answers = threading.Event(), []

    def attack() -> None:
        with EtcdClient(etcd.config(user=""), timeout=0.5) as client:
            while not over.wait(0.01):
                try:
                    EtcdUsers(client).check("of the attacker")
                    answers.append("root")
                except EtcdDenied:
                    answers.append("denied")
                except EtcdError:
                    pass  # it does not listen yet

    attacker = threading.Thread(target=attack)
    attacker.start()
    try:
        etcd.start()
        while "denied" not in answers and attacker.is_alive():
            over.wait(0.05)
    finally:
        over.set()
        attacker.join()
    assert set(answers) == {"denied"}
    with EtcdClient(etcd.config()) as client:
        assert EtcdUsers(client).names() == ["root"]
        client.put("/x", b"1")
