"""Names of torch as the script sees them; torch and elastrain see the originals."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, DistributedSampler

from elastrain.elastic.contract import BODY, Phase
from elastrain.elastic.strategies.strategy import ElasticModule
from elastrain_exec.data import Pass
from elastrain_exec.execution import Execution
from elastrain_exec.live import is_live
from elastrain_exec.refusals import Scripts, refuse
from elastrain_exec.text import FACTS

REFUSED = (
    *("broadcast", "broadcast_object_list", "all_gather", "all_gather_object", "all_gather_into_tensor", "gather"),
    *("gather_object", "reduce", "scatter", "scatter_object_list", "reduce_scatter", "reduce_scatter_tensor"),
    *("all_to_all", "all_to_all_single", "new_group", "new_subgroups", "send", "recv", "isend", "irecv"),
    *("batch_isend_irecv", "monitored_barrier"),
)
"""Of torch.distributed: their ranks are not those of the job."""
_OURS = ("torch", "elastrain", "elastrain_frameworks")


def _of_torch(depth: int = 2) -> bool:
    """Whether torch or elastrain calls."""
    return _package(sys._getframe(depth)) in _OURS


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


class TorchNames:
    """The originals of what is substituted."""

    def __init__(self) -> None:
        self.iterate: Callable[[Any], Iterator[Any]] = DataLoader.__iter__
        self.shard: Callable[[Any], Iterator[int]] = DistributedSampler.__iter__
        self._backward, self._save, self._load = torch.Tensor.backward, torch.save, torch.load
        self._inside = False
        """A backward of the script runs."""

    def substitute(self, execution: Execution) -> None:
        """From now on the script sees the job."""
        self._execution = execution
        self._process_group()
        self._models()
        self._made()
        self._data()
        self._files()
        torch.Tensor.backward = self._backward_of()

    # -- torch.distributed
    def _instead(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def called(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **kwargs) if _of_torch() else function(*args, **kwargs)

        setattr(owner, name, called)

    def _process_group(self) -> None:
        execution = self._execution

        def refused(name: str) -> Callable[..., Any]:
            return lambda *_, **__: refuse(f"torch.distributed.{name}(): its ranks are not those of the job")

        for name in REFUSED:
            self._instead(dist, name, refused(name))
        for name in ("init_process_group", "destroy_process_group"):
            self._instead(dist, name, lambda *_, **__: None)
        self._instead(dist, "is_initialized", lambda: True)
        self._instead(dist, "get_rank", lambda *_, **__: execution.rank)
        self._instead(dist, "get_world_size", lambda *_, **__: execution.world)
        self._instead(dist, "barrier", self._barrier)
        self._instead(dist, "all_reduce", self._all_reduce)
        self._instead(torch.multiprocessing, "spawn", self._spawn)
        set_device = torch.cuda.set_device
        self._instead(torch.cuda, "set_device", lambda device: set_device(int(device) if is_live(device) else device))

    def _barrier(self, *_: Any, **__: Any) -> None:
        """Ranks meet at each step's sums, and at the ends of loops."""
        if self._execution.phase in BODY:
            refuse("torch.distributed.barrier() in a loop body: other ranks may have to repeat this step")
        frame = Scripts.nearest()
        setup = self._execution.phase is Phase.SETUP
        if setup and frame is not None and FACTS.asks_for_rank(frame.f_code.co_filename, frame.f_lineno):
            refuse("barrier() in a branch of some ranks, which do not wait at set-up", "prepare data before the job")

    def _all_reduce(self, tensor: torch.Tensor, op: Any = None, *_: Any, **__: Any) -> None:
        """Between loops each rank has evaluated all data: sums, means and ratios are right as they are.

        Raises :class:`Refused` for what differs between the ranks: it comes from their parts of the training.
        """
        execution, phase = self._execution, self._execution.phase
        if phase in BODY or phase is Phase.SETUP:
            refuse(f"torch.distributed.all_reduce() {phase.value}: other ranks may have to repeat this step")
        execution.reduced = True
        mine = tensor.detach().double().cpu()
        others = [
            torch.as_tensor(other, dtype=torch.float64) for other in execution.job.all_gather_object(mine.tolist())
        ]
        if execution.counts and not all(torch.allclose(mine, other, rtol=1e-9, atol=0) for other in others):
            refuse("all_reduce() of a number that differs between the ranks: it is of their parts of the training data")

    def _spawn(self, fn: Any, args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> None:
        """The launcher of the script's own: this process is one of them."""
        if nprocs != self._execution.processes:
            refuse(f"mp.spawn(nprocs={nprocs})", f"elastrain exec --processes {nprocs}")
        fn(self._execution.rank, *args)

    def iterate_all(self, loader: Any) -> Iterator[Any]:
        """The batches of each of the N processes, one process after another."""
        if type(loader.sampler) is not DistributedSampler:
            yield from self.iterate(loader)
            return
        for rank in range(loader.sampler.num_replicas):
            loader.sampler.rank = rank
            yield from self.iterate(loader)
        loader.sampler.rank = 0

    # -- models and what updates them
    def _models(self) -> None:
        execution = self._execution

        class Kind(type):
            def __call__(cls, module: Any, device_ids: Any = None, output_device: Any = None, **options: Any) -> Any:
                if cls is not DistributedDataParallel:
                    refuse(f"{cls.__name__}: a class on top of DistributedDataParallel")
                for name in ("broadcast_buffers", "process_group", "dim", "bucket_cap_mb", "check_reduction"):
                    options.pop(name, None)
                execution.models.append(made := execution.job.wrap(module, **options))
                return made

            def __instancecheck__(cls, item: Any) -> bool:
                return isinstance(item, ElasticModule)

        class DistributedDataParallel(metaclass=Kind):
            """In place of torch's."""

        parallel: Any = torch.nn.parallel
        parallel.DistributedDataParallel = parallel.distributed.DistributedDataParallel = DistributedDataParallel
        module: Any = ElasticModule
        module.no_sync = lambda _self: contextlib.nullcontext()

    def _made(self) -> None:
        made = self._execution.made

        def watch(kind: Any) -> None:
            original = kind.__init__

            @functools.wraps(original)
            def init(self: Any, *args: Any, **kwargs: Any) -> None:
                frame: FrameType | None = sys._getframe(1)
                while frame is not None and _package(frame) == "torch":
                    frame = frame.f_back
                if frame is not None and _package(frame) not in _OURS and not any(one is self for one in made):
                    made.append(self)
                original(self, *args, **kwargs)

            kind.__init__ = init

        schedulers = [kind for kind in vars(lr_scheduler).values() if isinstance(kind, type)]
        own = [kind for kind in schedulers if issubclass(kind, LRScheduler) and "__init__" in vars(kind)]
        for kind in (torch.optim.Optimizer, torch.amp.GradScaler, AveragedModel, *own):  # not all call their base's
            watch(kind)

    def _backward_of(self) -> Callable[..., Any]:
        execution, backward = self._execution, self._backward

        @functools.wraps(backward)
        def of_loss(
            loss: Any, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None
        ) -> Any:
            phase = execution.phase
            if self._inside or _of_torch() or phase in (Phase.BACKWARD, Phase.LEAVING):
                return backward(loss, gradient, retain_graph, create_graph, inputs)
            if phase not in BODY:
                refuse("backward() outside of a 'for' over a DataLoader that trains: no step can be shared or repeated")
            if gradient is not None or create_graph or inputs is not None:
                refuse("backward(gradient=…, create_graph=…, inputs=…) in a training loop")
            self._inside = True
            try:
                scaled = execution.job._tracker._scaled
                value = execution.job.backward(loss, retain_graph=bool(retain_graph))
                if scaled is None:
                    loss.data.fill_(value.item())  # what is read from it is the loss of the global batch
            finally:
                self._inside = False
            return None

        return of_loss

    # -- data and files
    def _data(self) -> None:
        execution, names = self._execution, self
        sampler: Any = DistributedSampler
        init = sampler.__init__

        def made(
            self: Any, dataset: Any, num_replicas: Any = None, rank: Any = None, *args: Any, **kwargs: Any
        ) -> None:
            if num_replicas is not None and num_replicas != execution.processes:
                refuse(f"DistributedSampler(num_replicas={num_replicas})", f"elastrain exec --processes {num_replicas}")
            init(self, dataset, execution.processes, 0, *args, **kwargs)

        def length_of_loader(self: Any) -> int:
            trains = self in execution.loaders or type(self.sampler) is not DistributedSampler
            evaluates = not torch.is_grad_enabled() or execution.phase is not Phase.SETUP
            return int(length(self)) * (execution.processes if evaluates and not trains else 1)

        sampler.__init__ = made
        loader: Any = DataLoader
        length = loader.__len__
        loader.__len__ = length_of_loader

        def iterated(self: Any) -> Any:
            internal = type(self.dataset).__module__.startswith("elastrain.")
            return names.iterate(self) if _of_torch() or internal else Pass(execution, self)

        loader.__iter__ = iterated

    def _files(self) -> None:
        execution, save = self._execution, self._save

        @functools.wraps(save)
        def saved(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            if _of_torch() or not isinstance(f, str | os.PathLike):
                save(obj, f, *args, **kwargs)
            elif execution.counts and execution.rank.read() == 0:
                other = f"{os.fspath(f)}.{os.getpid()}"
                save(obj, other, *args, **kwargs)
                os.replace(other, f)  # noqa: PTH105 - both are texts

        torch.save = saved
