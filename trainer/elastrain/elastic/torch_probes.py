"""What proves that the private names of torch (:mod:`elastrain.elastic.torch_private`) do what elastrain needs.

Each has a probe that *does* what is needed, on a tiny object: a name that has become read-only exists, and fails only
in the use. :func:`check` runs the probes of what a job needs in ``job.wrap()``, so that an unusable torch is refused
before the job trains, and never in a rescale.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from elastrain.elastic import torch_private as private
from elastrain.elastic.comm.stock import groups as stock
from elastrain.elastic.comm.stock.nccl import IdStore

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

TESTED = ("2.12", "2.13", "2.15")
"""Minor versions of torch that the tests run on: CI on 2.13, ``make nightly`` on the oldest that pyproject.toml permits
and on the newest."""
_PARAM_NAMES = (
    "mesh_info", "post_forward_mesh_info", "_shard_mesh", "_spmd_mesh", "_sharding_spec", "sharded_size",
    "contiguous_sharded_stride", "padded_sharded_param_size", "_sharded_param_data", "all_gather_outputs",
)  # fmt: skip
_GLOO_SECONDS = 10.0
"""Bound of the wait that the probe of gloo ends. It ends within 20 ms."""


@dataclass(frozen=True, slots=True)
class Need:
    """Private names that serve one purpose."""

    names: str
    serves: str
    """What of elastrain needs them, as a user knows it."""
    probe: Callable[[], object]
    """Uses the names; raises any exception if they do not serve."""
    instead: str = ""
    """How a user can do without; empty: only another version of torch helps."""


class Unusable(RuntimeError):
    """The installed torch lacks what the job needs."""


def check(needs: Sequence[Need]) -> None:
    """Run the probes of ``needs`` that have not passed in this process.

    Raises :class:`Unusable` naming torch's version, the private name, what needs it, and the way out.
    """
    with _one_at_a_time:
        for need in needs:
            if need not in _passed:
                _prove(need)
                _passed.add(need)


def _prove(need: Need) -> None:
    try:
        need.probe()
    except Exception as e:
        way_out = f"install torch {', '.join(TESTED[:-1])} or {TESTED[-1]}" + (
            f", or {need.instead}" if need.instead else ""
        )
        raise Unusable(
            f"{need.serves} needs private names of torch, {need.names}; with torch {torch.__version__} they do not "
            f"work ({type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}): {way_out}"
        ) from e


def untested(version: str = torch.__version__) -> str | None:
    """A warning that names a ``version`` of torch that is not tested; None for a tested one. Pure."""
    if version.split("+", maxsplit=1)[0].rsplit(".", 1)[0] in TESTED:
        return None
    return (
        f"torch {version} is not a version that elastrain is tested with, which are {', '.join(TESTED)}: job.wrap() "
        "tries the private names that the job needs, and refuses those that do not work"
    )


_passed: set[Need] = set()
_one_at_a_time = threading.Lock()  # ranks of a test are threads


def _probe_model() -> None:
    model, ended = nn.BatchNorm1d(2), []
    model.register_buffer("hidden", torch.zeros(1), persistent=False)
    _expect(
        private.hidden_buffers(model) == {"hidden"}
        and isinstance(model, private.BatchNorm)
        and isinstance(model, private.Norm)
    )
    value = torch.ones(2, requires_grad=True)
    value.register_hook(lambda _: private.after_backward(lambda: ended.append(True)))
    value.sum().backward()
    _expect(ended == [True] and not private.compiles())
    values = [torch.ones(4)]
    private.foreach_mul_(values, 3.0)
    _expect(private.foreach_norm(values, 2, dtype=torch.float64)[0].item() == 6.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer = torch.optim.SGD([value], lr=0.0)
    scaler.unscale_(optimizer) if scaler.scale(value.sum()).item() else None
    private.forget_stages(scaler)
    scaler.unscale_(optimizer)  # raises if the first call is not forgotten


def _probe_trees() -> None:
    tree = {"a": [torch.ones(1)], "b": 2}
    leaves, spec = private.pytree.tree_flatten_with_path(tree)
    _expect([private.pytree.keystr(path) for path, _ in leaves] == ["['a'][0]", "['b']"])
    _expect(private.pytree.tree_unflatten([1, 2], spec) == {"a": [1], "b": 2})
    _expect(private.pytree.tree_map_with_path(lambda path, leaf: len(path), tree) == {"a": [2], "b": 1})
    _expect(private.pytree.tree_map_only(int, str, tree)["b"] == "2" and len(private.pytree.tree_leaves(tree)) == 2)


EVERY_JOB = (
    Need(
        "Module._non_persistent_buffers_set, Variable._execution_engine, GradScaler._per_optimizer_states, "
        "_foreach_norm, _foreach_mul_, _NormBase",
        "every job",
        _probe_model,
    ),
    Need("torch.utils._pytree", "the transfer of the state", _probe_trees),
)


def _tiny_mesh(size: int) -> DeviceMesh:
    group = dist.ProcessGroup(dist.HashStore(), 0, size)
    number = next(_numbers)
    first = number << 10  # no other mesh has these ranks (elastrain.elastic.strategies.sharding.group_mesh)
    return private.make_mesh("cpu", torch.arange(first, first + size), first, {"dp_shard": group}, -number)


_numbers = itertools.count(1)


def _probe_fsdp() -> None:
    from torch.distributed.fsdp import fully_shard

    model, mesh = nn.Linear(2, 2, bias=False), _tiny_mesh(1)
    try:
        fully_shard(model, mesh=mesh)
        _expect(private.root_of(model.weight.device_mesh) is mesh and private.sharded_together(model) == [model.weight])
        _expect(dist.get_global_rank(mesh.get_group(), 0) == mesh.mesh[0])
        private.count_lists()
        private.foreach_mul_([values := model.weight.detach().clone()], 1.0)
        _expect(values._version == 1)
        for fails in (True, False):
            value = torch.ones(1, 2, requires_grad=True)
            output = model(value)
            if fails:
                output.register_hook(lambda _: 1 / 0)
            with contextlib.suppress(ZeroDivisionError):
                (output * 2).sum().backward()
            private.end_backward(model)
        _expect(bool((private.local_of(model.weight.grad) == 2).all()))
    finally:
        private.forget_mesh(mesh)


def _probe_stock() -> None:
    """A group of one rank by gloo, whose listening socket closes with it."""
    store, value = dist.HashStore(), torch.ones(2)
    connect = private.gloo_backend("localhost", timedelta(seconds=10))
    group = private.process_group(store, 0, 1, value.device, lambda rank, size: connect(store, rank, size))
    group.set_timeout(timedelta(seconds=20))
    group.allreduce([value]).wait()
    _expect(value.tolist() == [1.0, 1.0])


def _probe_gloo() -> None:
    """Two ranks of this process are connected; shutting their sockets ends the collective in which one waits."""
    both, texts = threading.Barrier(2, timeout=_GLOO_SECONDS), [b"", b""]

    def gather(rank: int, mine: bytes) -> list[bytes]:
        texts[rank] = mine
        both.wait()
        return list(texts)

    def form(rank: int) -> stock.Gloo:
        return stock.Gloo(IdStore(0, rank, partial(gather, rank), root_reads=True), rank, 2, "localhost")

    with ThreadPoolExecutor(2) as pool:
        groups = list(pool.map(form, range(2)))
    try:
        groups[0].group.set_timeout(timedelta(seconds=_GLOO_SECONDS))
        waiting, began = groups[0].group.allreduce([torch.ones(2)]), time.monotonic()
        groups[0].abort("the probe")
        try:
            waiting.wait()
        except RuntimeError as e:
            _expect(stock.blames_peer(str(e)) and time.monotonic() - began < _GLOO_SECONDS / 2)
        else:
            _expect(False)
    finally:
        for group in groups:
            group.close()


def _probe_moves() -> None:
    """A tiny model moves from two shards to one, and trains there."""
    from torch.distributed.fsdp import fully_shard

    old, new = _tiny_mesh(2), _tiny_mesh(1)
    try:
        model = fully_shard(nn.Linear(2, 2, bias=False), mesh=old)
        (param,), info, memory = private.fsdp_params(model), private.mesh_info(new), torch.ones(2, 2)
        param.to_sharded_dtensor(private.local_of(model.weight).clone())  # fills what FSDP caches of the old mesh
        _expect(all(hasattr(param, name) for name in _PARAM_NAMES))
        private.replace_shard(model.weight, memory, memory, info, param)
        private.replace_mesh(model, info)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()  # raises if parameter, gradient and optimizer state are not on the same mesh
        _expect(model.weight.device_mesh is new and bool((memory < 1).all()))
    finally:
        private.forget_mesh(old)
        private.forget_mesh(new)


SHARDED = (
    Need(
        "DeviceMesh._dim_group_names, FSDPModule._get_fsdp_state, _world.pg_group_ranks, DTensor._op_dispatcher",
        "spec.parallelism.shards",
        _probe_fsdp,
        "leave spec.parallelism out",
    ),
    Need(
        "ProcessGroup._register_backend, ProcessGroup._set_default_backend, ProcessGroupGloo._Options",
        "spec.parallelism.shards",
        _probe_stock,
        "leave spec.parallelism out",
    ),
)
OVER_GLOO = (
    Need(
        "the addresses that ProcessGroupGloo publishes, and its errors",
        "ELASTRAIN_BACKEND=gloo",
        _probe_gloo,
        "leave it out of the template's env",
    ),
)
ONE_COPY = (
    Need(
        f"FSDPParam ({', '.join(_PARAM_NAMES)})", "spec.parallelism.shards: all", _probe_moves, "set shards to a number"
    ),
)


def _expect(holds: bool) -> None:
    if not holds:
        raise AssertionError("it has another meaning")
