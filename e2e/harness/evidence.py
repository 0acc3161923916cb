"""What is worth keeping of a test that failed."""

from __future__ import annotations

from pathlib import Path

from harness.commands import kubectl, run
from harness.release import NAMESPACE, etcdctl

_TAIL = 60
"""Lines of each log that are printed; all of it is in the folder."""


def collect(folder: Path, namespace: str | None) -> str:
    """Write everything there is to see into ``folder``; returns its most telling lines."""
    folder.mkdir(parents=True, exist_ok=True)
    told = []
    commands = {
        "nodes": ["get", "nodes", "-o", "wide"],
        "system-pods": ["get", "pods", "-n", NAMESPACE, "-o", "wide"],
        "dns": ["get", "pods", "-n", "kube-system", "-l", "k8s-app=kube-dns", "-o", "wide"],
        "operator": ["logs", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=operator", "--prefix", "--tail=2000"],
        "etcd-log": ["logs", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=etcd", "-c", "etcd", "--prefix"],
        "etcd": ["exec", "-n", NAMESPACE, "elastrain-etcd-0", "--", *etcdctl(), "get", "--prefix", "/elastrain/"],
    }
    commands["kueue"] = ["logs", "-n", "kueue-system", "-l", "app.kubernetes.io/name=kueue", "--tail=2000"]
    if namespace:
        commands |= {
            "pods": ["get", "pods", "-n", namespace, "-o", "wide"],
            "pods-yaml": ["get", "pods", "-n", namespace, "-o", "yaml"],
            "jobs": ["get", "etj", "-n", namespace, "-o", "yaml"],
            "workloads": ["get", "workloads.kueue.x-k8s.io", "-n", namespace, "-o", "yaml"],
            "events": ["get", "events", "-n", namespace, "--sort-by=.lastTimestamp"],
        }
        names = run("kubectl", "get", "pods", "-n", namespace, "-o", "name", check=False).stdout.split()
        commands |= {f"log-{name.split('/')[1]}": ["logs", "-n", namespace, name] for name in names}
    for title, command in commands.items():
        done = run("kubectl", *command, check=False)
        text = done.stdout + done.stderr
        (folder / f"{title}.txt").write_text(text)
        if title not in ("pods-yaml", "workloads"):
            told.append(f"---- {title} ----\n" + "\n".join(text.splitlines()[-_TAIL:]))
    return "\n".join([*told, f"(all of it: {folder})"])


def namespaces() -> list[str]:
    """Namespaces that tests have made and not deleted."""
    listed = kubectl("get", "namespaces", "-l", "elastrain-e2e=yes", "-o", "name")
    return [line.split("/")[1] for line in listed.split()]
