"""Every private name of torch that elastrain uses.

Private names change between versions without notice. This is the only module that uses them (a project test reads all
others), and :mod:`elastrain.elastic.torch_probes` proves that the installed torch has them.

Modules of torch that would delay the start of every job are imported where they are used.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _NormBase as Norm
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["BatchNorm", "Norm", "pytree"]

foreach_norm, foreach_mul_ = torch._foreach_norm, torch._foreach_mul_


# -- models, optimizers, autograd --------------------------------------------------------------------------------------
def after_backward(callback: Callable[[], None]) -> None:
    """Call ``callback()`` at the end of the backward that runs on this thread."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def hidden_buffers(module: nn.Module) -> set[str]:
    """Names of the buffers of ``module`` itself that are not in its ``state_dict``."""
    return set(module._non_persistent_buffers_set)


def uncompiled(module: nn.Module) -> nn.Module:
    """The model that ``torch.compile`` was given, if ``module`` is its result; otherwise ``module``."""
    own: nn.Module = getattr(module, "_orig_mod", module)
    return own


def compiles() -> bool:
    """Whether the compiler traces the code that runs."""
    from torch._C._dynamo.eval_frame import get_eval_frame_callback

    return bool(get_eval_frame_callback())


def hooked(module: nn.Module) -> str | None:
    """The first parameter or layer of ``module`` with a hook of the script that a backward calls."""
    of_all = nn.modules.module
    if of_all._global_backward_hooks or of_all._global_backward_pre_hooks:
        return "every layer"
    named = [*(("parameter", *p) for p in module.named_parameters()), *(("layer", *m) for m in module.named_modules())]
    for kind, name, one in named:
        hooks = [
            hook
            for of in ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")
            for hook in (getattr(one, of, None) or {}).values()
        ]
        theirs = any(not getattr(hook, "__module__", "").startswith("elastrain.") for hook in hooks)
        if theirs or hasattr(one, "_in_backward_optimizers"):
            return f"{kind} {name}"
    return None


def forget_stages(scaler: Any) -> None:
    """Forget the optimizers that a scaler of losses has seen since its last ``update()``; its state has none of it."""
    stages = getattr(scaler, "_per_optimizer_states", None)
    if stages is not None:
        stages.clear()


# -- meshes and their groups -------------------------------------------------------------------------------------------
def make_mesh(
    device_type: str, ranks: torch.Tensor, rank: int, groups: dict[str, dist.ProcessGroup], number: int
) -> DeviceMesh:
    """A mesh of ``ranks`` with ``groups`` by the names of its dimensions; it needs no default process group.

    ``rank``: this one. ``number``: of the mesh in this process, for the names of its groups.
    """
    from torch.distributed.device_mesh import DeviceMesh

    mesh = DeviceMesh(device_type, ranks, mesh_dim_names=tuple(groups), _init_backend=False, _rank=rank)
    mesh.__class__ = _unpicklable(DeviceMesh)
    mesh._dim_group_names = [f"elastrain:group:{number}:{dimension}" for dimension in groups]
    place = tuple((ranks == rank).nonzero()[0].tolist())
    for dim, (name, group) in enumerate(zip(mesh._dim_group_names, groups.values(), strict=True)):
        group._set_group_name(name)
        torch._C._distributed_c10d._register_process_group(name, group)
        mesh._pg_registry[name] = group
        along = ranks[(*place[:dim], slice(None), *place[dim + 1 :])].tolist()
        # dist.recv(), and the stages of torch's pipelines, name a peer by its number in the process.
        dist.distributed_c10d._world.pg_group_ranks[group] = {each: at for at, each in enumerate(along)}
    return mesh


@functools.cache
def _unpicklable(kind: type[DeviceMesh]) -> type[DeviceMesh]:
    """A mesh that lives as long as its process: of what lies on it each rank would write its own part."""

    class JobMesh(kind):
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise RuntimeError(
                "torch.save() of a sharded tensor would write this rank's part alone: gather the whole model by "
                "get_model_state_dict(net, options=StateDictOptions(full_state_dict=True)) on all ranks of the group, "
                "or use spec.checkpoint (docs/sharded.md)"
            )

        def __deepcopy__(self, memo: Any) -> Any:
            return self

    JobMesh.__name__ = JobMesh.__qualname__ = kind.__name__
    return JobMesh


def process_group(
    store: dist.Store, rank: int, size: int, device: torch.device, backend: Callable[[int, int], Any]
) -> dist.ProcessGroup:
    """A process group of one ``backend(rank, size)``, for tensors on ``device``. Needs no default process group."""
    kind = dist.ProcessGroup.BackendType.NCCL if device.type == "cuda" else dist.ProcessGroup.BackendType.GLOO
    connected, group = backend(rank, size), dist.ProcessGroup(store, rank, size)
    group._set_default_backend(kind)
    group._register_backend(device, kind, connected)
    return group


def gloo_backend(address: str, bound: timedelta) -> Callable[[dist.Store, int, int], Any]:
    """What connects ranks by gloo, each within ``bound``: ``connect(store, rank, size)``. ``address``: this host's."""
    kind = dist.distributed_c10d.ProcessGroupGloo
    options = kind._Options()
    options._timeout, options._devices = bound, [kind.create_device(hostname=address)]
    return lambda store, rank, size: kind(store, rank, size, options)


def forget_mesh(mesh: DeviceMesh) -> None:
    """Release the process groups of a mesh that nothing uses any more."""
    for name in mesh._dim_group_names:
        dist.distributed_c10d._world.pg_group_ranks.pop(mesh._pg_registry[name], None)
        torch._C._distributed_c10d._unregister_process_group(name)


def root_of(mesh: DeviceMesh) -> DeviceMesh:
    """The mesh that ``mesh`` is a part of; itself if it is whole."""
    return mesh._get_root_mesh()


def work_of(future: torch.futures.Future[Any]) -> Any:
    """torch's ``Work`` of a collective whose result is in ``future``."""
    private: Any = torch._C._distributed_c10d  # the stubs of some versions lack the name
    return private._create_work_from_future(future)


def number_ranks_by(get_rank: Callable[..., int], scatters: Callable[..., int]) -> None:
    """Meshes that torch makes of parts of a mesh take this rank's number from ``get_rank(group)``, and a layer that
    ``parallelize_module`` would scatter from ``scatters(group)``; torch takes both from its default process group."""
    import torch.distributed.device_mesh
    from torch.distributed.tensor import _collective_utils

    torch.distributed.device_mesh.get_rank = get_rank
    _collective_utils.get_rank = scatters


def strided_shard(dim: int | None, split_factor: int) -> Any:
    """The placement of a tensor that a mesh dimension to the right has cut in ``dim`` before, in so many parts."""
    from torch.distributed.tensor.placement_types import _StridedShard

    return _StridedShard(dim, split_factor=split_factor)


# -- FSDP2 -------------------------------------------------------------------------------------------------------------
def end_backward(model: nn.Module) -> None:
    """An exception has ended a backward of ``model``: make FSDP ready for the next forward, by the callback that it
    queues for the end of each backward."""
    for module in fsdp_modules(model):
        state = module._get_fsdp_state()
        if state._is_root and state._state_ctx.post_backward_final_callback_queued:
            state._root_post_backward_final_callback()
        module.reshard()


def fsdp_modules(model: nn.Module) -> list[Any]:
    """The modules that ``fully_shard`` was called for."""
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def sharded_together(module: Any) -> list[nn.Parameter]:
    """The parameters whose gradients one reduction of FSDP adds: those of ``module`` without its sharded parts."""
    return [param.sharded_param for group in module._get_fsdp_state()._fsdp_param_groups for param in group.fsdp_params]


def fsdp_params(model: nn.Module) -> list[Any]:
    """FSDP's records of the parameters (``FSDPParam``)."""
    return [param for group in _fsdp_groups(model) for param in group.fsdp_params]


def mesh_info(mesh: DeviceMesh) -> Any:
    """FSDP's description of ``mesh``, whose first dimension shards."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo

    return FSDPMeshInfo(mesh, shard_mesh_dim=0)


def replace_mesh(model: nn.Module, info: Any) -> None:
    """All parameters of ``model`` lie on the mesh of ``info``: its groups of parameters do too."""
    for group in _fsdp_groups(model):
        group.mesh_info = info
        group.post_forward_mesh_info = None if group.post_forward_mesh_info is None else info


def local_of(tensor: Any) -> torch.Tensor:
    """The memory of a ``DTensor`` on this rank, to write to; any other tensor itself."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def replace_shard(tensor: Any, local: torch.Tensor, padded: torch.Tensor, info: Any, param: Any = None) -> None:
    """From now on ``tensor``, a ``DTensor`` sharded by rows, lies on the mesh of ``info``.

    ``local``: this rank's rows. ``padded``: the memory with as many rows as the first shard has, which FSDP wants for
    all. ``param``: FSDP's record, if the tensor is a parameter.
    """
    from torch._prims_common import make_contiguous_strides_for
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor._dtensor_spec import DTensorSpec

    spec = DTensorSpec(info.mesh, (Shard(0),), tensor_meta=tensor._spec.tensor_meta)
    tensor._local_tensor, tensor._spec = local, spec
    if (p := param) is None:
        return
    tensor.grad = None
    if p.unsharded_accumulated_grad is not None:  # a property without a setter since torch 2.15
        p.unsharded_accumulated_grad = None
    p.mesh_info, p._shard_mesh, p._spmd_mesh, p._sharding_spec = info, info.mesh, info.mesh, spec
    if hasattr(p, "_sharding_spec_by_dtype"):  # a cache, since torch 2.15
        p._sharding_spec_by_dtype = {}
    p.post_forward_mesh_info = None if p.post_forward_mesh_info is None else info
    p.sharded_size = local.size()
    p.contiguous_sharded_stride = make_contiguous_strides_for(p.sharded_size)
    p.padded_sharded_param_size, p._sharded_param_data = padded.size(), padded.view(-1)
    p.all_gather_outputs = []  # of the old size; FSDP makes them again
    if hasattr(p, "_unsharded_param"):
        del p._unsharded_param


def _fsdp_groups(model: nn.Module) -> list[Any]:
    return [group for module in fsdp_modules(model) for group in module._get_fsdp_state()._fsdp_param_groups]


# -- writes that torch does not count ---------------------------------------------------------------------------------
_DATA: Any = torch.Tensor.data
_uses = threading.local()


def uses_of_data() -> set[int]:
    """:func:`memory_of` each tensor whose ``.data`` this thread has used: what writes to that raises no version.

    Cleared by the caller. For the compiler ``.data`` is a word of its own: what it makes of it raises the version.
    """

    def get(tensor: torch.Tensor) -> torch.Tensor:
        uses_of_data().add(memory_of(tensor))
        data: torch.Tensor = _DATA.__get__(tensor)
        return data

    def put(tensor: torch.Tensor, value: torch.Tensor) -> None:
        _DATA.__set__(tensor, value)
        uses_of_data().add(memory_of(tensor))

    if torch.Tensor.data is _DATA:
        setattr(torch.Tensor, "data", property(get, put))  # noqa: B010 - torch declares it in another class
    used: set[int] = vars(_uses).setdefault("memory", set())
    return used


def memory_of(tensor: torch.Tensor) -> int:
    """A number that tensors share which share memory; of one that wraps others, but a sharded one, its own."""
    try:
        return local_of(tensor).untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def is_shared(tensor: torch.Tensor) -> bool:
    """Whether another tensor, or an array, has its memory: what writes to that raises no version of this one."""
    plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
    return plain and torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) > 2  # its own, and the object here


def count_lists() -> None:
    """From now on what changes a list of sharded tensors (``torch._foreach_lerp_``) raises their versions, as it does
    of plain ones. Torch calls it from their dispatch, where nothing counts any more."""
    from torch.distributed.tensor import DTensor  # takes a second to import

    handlers = DTensor._op_dispatcher._custom_op_handlers

    def count(operation: Any, args: Any, kwargs: Any) -> Any:
        torch.autograd.graph.increment_version([tensor for tensor in args[0] if not tensor.is_inference()])
        handlers.pop(operation, None)  # what torch does itself follows; in a process one thread trains
        try:
            return operation(*args, **kwargs)
        finally:
            handlers[operation] = count

    packets = [getattr(torch.ops.aten, n) for n in dir(torch) if n.startswith("_foreach_") and n.endswith("_")]
    handlers.update({getattr(packet, overload): count for packet in packets for overload in packet.overloads()})


# -- other -------------------------------------------------------------------------------------------------------------
def watch_captures(begins: Callable[[], None], ended: Callable[[], None]) -> None:
    """Call ``begins()`` before each capture of a graph that torch begins in this process, and ``ended()`` when it is
    over or has failed."""
    kinds: list[Any] = [torch.cuda.CUDAGraph, getattr(torch.accelerator, "Graph", None)]  # the latter since torch 2.13
    for kind in filter(None, kinds):
        _watch_captures(kind, begins, ended)


def _watch_captures(kind: Any, begins: Callable[[], None], ended: Callable[[], None]) -> None:
    ends = "capture_end_pre" if hasattr(kind, "capture_end_pre") else "capture_end"  # the former is in it, since 2.15
    begin, end = kind.capture_begin, getattr(kind, ends)

    @functools.wraps(begin)
    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        begins()
        try:
            begin(self, *args, **kwargs)
        except BaseException:
            ended()
            raise

    @functools.wraps(end)
    def capture_end(self: Any) -> None:
        try:
            end(self)
        finally:
            ended()

    kind.capture_begin = capture_begin
    setattr(kind, ends, capture_end)


def nccl_pointer(backend: Any) -> Callable[[], int] | None:
    """What returns the pointer of a backend's ``ncclComm_t``; None if this torch does not give it."""
    pointer: Callable[[], int] | None = getattr(backend, "_comm_ptr", None)
    return pointer


def nccl_options(timeout: timedelta) -> Any:
    """Options of a NCCL group in its blocking mode, whose collectives end after ``timeout``."""
    options: Any = dist.distributed_c10d.ProcessGroupNCCL.Options()
    options.config.blocking = 1
    return with_timeout(options, timeout)


def gloo_options(devices: list[Any], timeout: timedelta) -> Any:
    """Options of a gloo group with ``devices`` of its own."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = devices
    return with_timeout(options, timeout)


def with_timeout(options: Any, timeout: timedelta) -> Any:
    """``options`` of a backend, whose collectives end after ``timeout``."""
    options._timeout = timeout
    return options


def storage_prefix(prefix: str) -> Any:
    """The beginning of the names of the files that DCP writes for a plan."""
    from torch.distributed.checkpoint.filesystem import _StoragePrefix

    return _StoragePrefix(prefix)
