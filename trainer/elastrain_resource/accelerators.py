"""Derives the accelerators of a worker, and so its ranks, from the pod template's resource limits. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

AUTO = "auto"
"""Value of ``nprocPerNode``: one rank per accelerator, or one rank without accelerators."""

KNOWN = frozenset(
    {
        "nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi", "google.com/tpu", "gpu.intel.com/i915", "gpu.intel.com/xe",
        "aws.amazon.com/neuron", "aws.amazon.com/neuroncore", "huawei.com/Ascend910", "cambricon.com/mlu",
    }
)  # fmt: skip
"""Known accelerator resources of device plugins. They distinguish an accelerator from other devices (network cards)."""
_KNOWN_PREFIX = "nvidia.com/mig-"


class AcceleratorUnclear(ValueError):
    """The accelerator resource or its number is ambiguous; the message names the field and the remedy."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The accelerators of one worker."""

    resource: str
    """Name of the extended resource, such as ``nvidia.com/gpu``."""
    count: int
    """Accelerators in each worker."""


def accelerator(trainer: Mapping[str, Any], named: str | None) -> Accelerator | None:
    """The accelerator in the limits of the container ``trainer``; None: a CPU-only worker.

    ``named`` is ``spec.accelerator``. Without it: the only extended resource, or the only known accelerator among
    several. Raises :class:`AcceleratorUnclear`.
    """
    limits = limits_of(trainer)
    where = f"spec.template.spec.containers[{trainer.get('name', 0)}].resources.limits"
    devices = extended(trainer)
    if named is not None:
        if named not in limits:
            have = ", ".join(devices) or "no extended resource"
            raise AcceleratorUnclear(f"spec.accelerator ({named}) must be one of {where}, which has {have}")
        return Accelerator(named, _count(limits[named], f"{where}[{named}]"))
    known = [name for name in devices if name in KNOWN or name.startswith(_KNOWN_PREFIX)]
    found = known or devices
    if len(found) > 1:
        raise AcceleratorUnclear(
            f"{where} has several extended resources ({', '.join(found)}): name the one that ranks compute on in "
            "spec.accelerator"
        )
    return Accelerator(found[0], _count(limits[found[0]], f"{where}[{found[0]}]")) if found else None


def extended(trainer: Mapping[str, Any]) -> list[str]:
    """Names of the extended resources in the limits of the container ``trainer``: accelerators, network cards, and
    others."""
    return sorted(name for name in limits_of(trainer) if is_extended(name))


def is_extended(resource: str) -> bool:
    """Kubernetes' rule: a name with a domain other than ``kubernetes.io``."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def ranks(nproc: int | str, trainer: Mapping[str, Any], named: str | None) -> int:
    """Ranks in each worker: ``nproc`` itself, or for ``auto`` the number of accelerators, at least 1.

    Raises :class:`AcceleratorUnclear`, for ``auto`` only.
    """
    if isinstance(nproc, int):
        return nproc
    found = accelerator(trainer, named)
    return max(found.count, 1) if found else 1


def limits_of(trainer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resource limits of the container ``trainer``; empty if the API server will refuse their shape."""
    resources = trainer.get("resources")
    limits = resources.get("limits") if isinstance(resources, Mapping) else None
    return limits if isinstance(limits, Mapping) else {}


def _count(value: Any, where: str) -> int:
    """The number in ``value``, which must be whole for an extended resource."""
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit():
        raise AcceleratorUnclear(f"{where} ({value}) must be a whole number")
    return int(text)
