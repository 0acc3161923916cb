"""Who may be taken away from a cluster, and how: operator, etcd, API server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from harness.commands import CLUSTER, docker, eventually, kubectl, kubectl_json, run
from harness.release import NAMESPACE, wait_pod_of

API_SERVER = "apiserver"
PARTIES = ("operator", "etcd", API_SERVER)
"""In the order in which they are taken away; they come back in the opposite one."""
CASES = {**{party: (party,) for party in PARTIES}, "all": PARTIES}
_CONTROL_PLANE = f"{CLUSTER}-control-plane"
_MANIFEST, _HELD = "/etc/kubernetes/manifests/kube-apiserver.yaml", "/etc/kubernetes/kube-apiserver.held"
_KINDS = {"operator": "deployment", "etcd": "statefulset"}


@dataclass
class Outage:
    """One outage of ``parties``; whatever is away comes back by :meth:`end`, also after an error."""

    parties: tuple[str, ...]
    _replicas: dict[str, int] = field(default_factory=dict)

    def begin(self, last_words: Callable[[], None]) -> None:
        """Take them away; ``last_words`` are spoken to the API server as late as it can hear them, so that as many of
        the others as possible do not."""
        for party in self.parties:
            if party == API_SERVER:
                last_words()
                docker("exec", _CONTROL_PLANE, "mv", _MANIFEST, _HELD)
                eventually("the API server is gone", lambda: not _api_server_answers(), 120)
            else:
                self._scale_away(party)
        if API_SERVER not in self.parties:
            last_words()

    def end(self) -> None:
        """Bring them back, and wait until they are there."""
        for party in reversed(self.parties):
            if party == API_SERVER:
                docker("exec", _CONTROL_PLANE, "sh", "-c", f"[ ! -e {_HELD} ] || mv {_HELD} {_MANIFEST}")
                eventually("the API server answers", _api_server_answers, 180)
            elif party in self._replicas:
                kubectl("scale", *_names(party), f"--replicas={self._replicas.pop(party)}")
                wait_pod_of(party)

    def _scale_away(self, party: str) -> None:
        items = kubectl_json("get", *_names(party))["items"]
        self._replicas[party] = int(items[0]["spec"]["replicas"])
        kubectl("scale", *_names(party), "--replicas=0")
        label = f"app.kubernetes.io/component={party}"
        gone = lambda: not kubectl_json("get", "pods", "-n", NAMESPACE, "-l", label)["items"]  # noqa: E731
        eventually(f"the pod of {party} is gone", gone, 120)


def _names(party: str) -> tuple[str, ...]:
    return (_KINDS[party], "-n", NAMESPACE, "-l", f"app.kubernetes.io/component={party}")


def _api_server_answers() -> bool:
    return run("kubectl", "--request-timeout=3s", "get", "--raw=/readyz", check=False).returncode == 0
