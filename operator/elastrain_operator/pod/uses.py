"""Labels workers that use a service account, a Secret or a claim of their namespace, and their job. Pure.

The API server compares these workers, and only these, with their job's template, by the chart's ``admission.yaml``,
which has the same rule in CEL. The comparison takes time in proportion to the jobs of the namespace that have the same
value of the label: the first digit of a UID, so a sixteenth of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastrain.api import names

_HARMLESS = ("emptyDir", "configMap", "downwardAPI")
_OURS = ("elastrain-etcd",)

Raw = Mapping[str, Any]


def label(body: Raw, uid: str) -> dict[str, str]:
    """The label of a pod with this spec, which has the right shape, of the job with this UID; empty: it uses none of
    them."""
    containers = [*body["containers"], *(body.get("initContainers") or [])]
    account = body.get("serviceAccountName") or body.get("serviceAccount") or "default"
    if account != "default" or any(map(_reads, body.get("volumes") or [])) or any(map(_knows, containers)):
        return {names.LABEL_USES: uid[:1]}
    return {}


def _reads(volume: Raw) -> bool:
    if volume.get("name") in _OURS or any(volume.get(kind) is not None for kind in _HARMLESS):
        return False
    projected = volume.get("projected")
    if projected is not None:
        return any(source.get("secret") is not None for source in projected.get("sources") or [])
    return any(value is not None for field, value in volume.items() if field != "name")  # without a source: an emptyDir


def _knows(container: Raw) -> bool:
    variables = [e for e in container.get("env") or [] if (e.get("valueFrom") or {}).get("secretKeyRef")]
    return any(source.get("secretRef") for source in container.get("envFrom") or []) or any(
        e["name"] != names.ENV_ETCD_USERNAME for e in variables
    )
