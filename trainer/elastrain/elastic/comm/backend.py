"""Which transport sums gradients that lie on devices: NCCL, or TCP through the host's memory.

Each rank determines what it could use (:func:`propose`) and sends it to its peers when they meet. All ranks then take
the same decision from all offers (:func:`agree`). A worker without a GPU, or two ranks on one card, therefore never
leave half of the ranks in an NCCL call that the others do not make.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

import torch
import torch.distributed as dist

from elastrain.api import names
from elastrain.api.settings import Transport

SHARED_NCCL = (2, 30)
"""From this version on ``NCCL_MULTI_RANK_GPU_ENABLE=1`` permits several ranks on one device."""
LEAST_NCCL = (2, 25)
"""From this version on ``ncclCommAbort`` ends kernels that wait for a lost peer, without hanging itself."""


class Backend(StrEnum):
    """A transport of gradient sums."""

    TCP = "tcp"
    NCCL = "nccl"
    GLOO = "gloo"


@dataclass(frozen=True, slots=True)
class Here:
    """A rank's view of its model and its device."""

    model: str
    """Type of the device of the model's parameters: "cpu", "cuda", …"""
    card: str = ""
    """UUID of the device; empty for a CPU."""
    nccl: tuple[int, ...] | None = None
    """Version of NCCL that is loaded; None: torch was built without it."""
    shares: bool = False
    """Whether NCCL may use a device for several ranks (``NCCL_MULTI_RANK_GPU_ENABLE=1``)."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The best transport that a rank could use."""

    backend: Backend = Backend.TCP
    card: str = ""
    why: str = ""
    """For people: the reason why it is not NCCL."""
    shares: bool = False
    """Whether its device may be that of other ranks too."""
    failed: str = ""
    """Why NCCL did not connect this rank, which may use another transport instead; empty: it has not failed."""
    proven: bool = False
    """Whether this rank has trained with NCCL."""
    inner: Backend = Backend.TCP
    """The best transport inside a group of ranks that hold one model together (``spec.parallelism.shards``)."""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Offer:
        fields = json.loads(text)
        return cls(**{**fields, "backend": Backend(fields["backend"]), "inner": Backend(fields["inner"])})


@dataclass(frozen=True, slots=True)
class Choice:
    """The transport of a generation; the same on all its ranks."""

    backend: Backend
    why: str
    inner: Backend = Backend.TCP


def propose(here: Here, demanded: Transport) -> Offer:
    """The transport that this rank could use. Pure.

    ``demanded``: of the settings. Raises ``ValueError``, naming the variable and the way out, if it cannot be had.
    """
    if demanded == "gloo":
        raise ValueError(
            f"{names.ENV_BACKEND}=gloo connects the ranks of a group, and spec.parallelism.shards is 1: leave it out"
        )
    if demanded == "tcp":
        return Offer(Backend.TCP, here.card, f"{names.ENV_BACKEND}=tcp")
    obstacle = _obstacle(here)
    if obstacle is None:
        return Offer(Backend.NCCL, here.card, shares=here.shares and (here.nccl or ()) >= SHARED_NCCL)
    if demanded == "nccl":
        raise ValueError(
            f"{names.ENV_BACKEND}=nccl, but {obstacle}; change that, or set {names.ENV_BACKEND}=tcp in the template's "
            "env"
        )
    return Offer(Backend.TCP, here.card, obstacle)


def propose_within(here: Here, demanded: Transport) -> Offer:
    """The transport that this rank could use inside its group; sums over groups go over TCP. Pure.

    On CPUs elastrain's own connections are the default: they are authenticated, find ranks that exchange different
    sizes, and are as fast. Raises as of :func:`propose`.
    """
    if demanded == "gloo":
        if here.model != "cpu":
            raise ValueError(
                f"{names.ENV_BACKEND}=gloo, but the model is on a device of type {here.model!r}: leave it out"
            )
        return Offer(why=f"{names.ENV_BACKEND}=gloo connects the ranks of a group", inner=Backend.GLOO)
    best = propose(here, demanded)
    why = best.why or "sums over groups go through the host's memory"
    return replace(best, backend=Backend.TCP, inner=best.backend, why=why)


def _obstacle(here: Here) -> str | None:
    if here.model == "cpu":
        return "the model is on the CPU"
    if here.model != "cuda":
        return f"the model is on a device of type {here.model!r}, and NCCL needs CUDA"
    if here.nccl is None:
        return "this build of torch has no NCCL"
    if here.nccl < LEAST_NCCL:
        have, least = (".".join(map(str, v)) for v in (here.nccl, LEAST_NCCL))
        return f"NCCL {have} cannot be aborted safely, {least} can: install a newer torch"
    return None


def agree(offers: Sequence[Offer]) -> Choice:
    """The decision of all ranks, from all offers in rank order. Pure."""
    within = {offer.inner for offer in offers}
    if within == {Backend.NCCL}:
        choice = _agree_on_nccl([replace(offer, backend=offer.inner) for offer in offers])
        return replace(choice, backend=Backend.TCP, inner=choice.backend)
    inner = Backend.GLOO if within == {Backend.GLOO} else Backend.TCP
    return replace(_agree_on_nccl(offers), inner=inner)


def _agree_on_nccl(offers: Sequence[Offer]) -> Choice:
    without = next((rank for rank, offer in enumerate(offers) if offer.backend is not Backend.NCCL), None)
    if without is not None:
        return Choice(Backend.TCP, f"rank {without}: {offers[without].why}")
    failed = next((rank for rank, offer in enumerate(offers) if offer.failed), None)
    if failed is not None and not any(offer.proven for offer in offers):
        return Choice(Backend.TCP, f"rank {failed} falls back to TCP: {offers[failed].failed}")
    (card, users), *_ = Counter(offer.card for offer in offers).most_common(1)
    if users > 1 and not all(offer.shares for offer in offers):
        ranks = ", ".join(str(rank) for rank, offer in enumerate(offers) if offer.card == card)
        return Choice(Backend.TCP, f"ranks {ranks} share the device {card}, which NCCL refuses")
    shared = "NCCL_MULTI_RANK_GPU_ENABLE permits ranks that share a CUDA device"
    return Choice(Backend.NCCL, shared if users > 1 else "every rank has a CUDA device of its own")


def look(model: torch.device) -> Here:
    """This rank's model and device. Initialises CUDA only if the model is on a CUDA device already."""
    if model.type != "cuda":
        return Here(model.type)
    card = str(torch.cuda.get_device_properties(model).uuid)
    if host := os.environ.get("NCCL_HOSTID"):  # NCCL takes ranks of different hosts to have different devices
        card = f"{host}/{card}"
    version = torch.cuda.nccl.version() if dist.is_nccl_available() else None
    return Here("cuda", card, version, shares=os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1")


def device_of_rank(local_rank: int) -> torch.device:
    """This rank's CUDA device, by the local rank, set as the process's current device; the CPU if there is none.

    Ranks beyond the number of visible devices share them.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def unused_accelerator(model: str) -> str | None:
    """A warning for the user if the worker has an accelerator that the model does not use, otherwise None.

    ``model``: type of the device of the model's parameters.
    """
    if model != "cpu":
        return None
    visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    files = sorted(str(path) for path in Path("/dev").glob("nvidia[0-9]*"))
    return advice(visible, files, torch.version.cuda)


def advice(visible: int, files: Sequence[str], cuda_build: str | None) -> str | None:
    """How to get a model from the CPU to the accelerator; None if there is none. Pure.

    ``visible``: devices that torch sees; ``files``: the driver's, one for each device; ``cuda_build``: version of CUDA
    that torch was built for.
    """
    if visible:
        return (
            f"the model is on the CPU although torch sees {visible} CUDA device(s): move it there with "
            "net.to(job.device), before job.wrap(net)"
        )
    if not files:
        return None
    there = f"this worker has {len(files)} NVIDIA device(s) ({files[0]} …), but torch"
    if cuda_build is None:
        return f"{there} was built for CPUs only: install a CUDA build of torch in the image"
    return (
        f"{there} (built for CUDA {cuda_build}) cannot use them: compare the driver's version in nvidia-smi, and see "
        "whether CUDA_VISIBLE_DEVICES hides them"
    )
