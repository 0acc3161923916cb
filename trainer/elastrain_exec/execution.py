"""One run of a script in a rank of a job: where it is, what it has made, which numbers it reads."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import nn

from elastrain.api import names
from elastrain.elastic.contract import BODY, Phase
from elastrain.elastic.job import Job
from elastrain_exec.carried import Variables
from elastrain_exec.live import Live, World
from elastrain_exec.order import OPTIONS, Order
from elastrain_exec.refusals import refuse
from elastrain_exec.said import Said

_NOTHING = (Phase.PASSED, Phase.WARM_UP, Phase.DISCARDED, Phase.LEARNING, Phase.LEAVING)
"""Where nothing counts that the script does."""


@dataclass
class OfLoader:
    """A ``DataLoader`` that trains."""

    loader: Any
    """The job's."""
    torch_order: Order


class Execution:
    """Of this process."""

    def __init__(self, job: Job, processes: int, torch_names: Any) -> None:
        """``torch_names``: as of :class:`elastrain_exec.substitutes.TorchNames`."""
        self.job, self.processes, self.torch = job, processes, torch_names
        self.skips, self.entered, self.reported = False, False, False
        self.models: list[Any] = []
        self.made: list[Any] = []
        """Optimizers, schedulers, scalers and averages of the script."""
        self.loaders: dict[Any, OfLoader] = {}
        self.passes: dict[Any, int] = {}
        self.variables = Variables(self.knows)
        self.rank, self.world = Live(self._rank), World(processes, self._world)
        self.reduced = False
        """Numbers were reduced since the last loop."""
        worker = os.environ.get(names.ENV_WORKER, "-0")
        self.first = worker.endswith("-0") and os.environ.get(names.ENV_LOCAL_RANK, "0") == "0"
        self.fresh = not job._session.locate().training
        """The job has not trained yet."""
        self.said = Said(lambda: self.phase, lambda: self.counts, lambda: self.fresh)

    @property
    def phase(self) -> Phase:
        """Where the script is; in a joiner that skips epochs, in one that is over."""
        return Phase.PASSED if self.skips else self.job._loop.phase

    @property
    def passed(self) -> bool:
        """Whether the epoch is over in which the script is."""
        return self.phase is Phase.PASSED

    @property
    def counts(self) -> bool:
        """Whether what the script does now happens once in the job."""
        body = self.job.body
        return self.phase not in _NOTHING and not (body is not None and body.warm_up)

    def _rank(self) -> int:
        """Never -1, which scripts take for 'not distributed': a rank that is none of the job's is not the main one."""
        if self.phase is Phase.SETUP:
            return 0 if self.first and self.fresh else max(1, self.processes - 1)
        return self.job._world.place.rank if self.counts else max(1, self.processes - 1)

    def _world(self, operation: str) -> int:
        """What the script was written for; 1 in the mean of what was reduced between loops, where each rank evaluates
        all data. Raises :class:`Refused` for other arithmetic there: it may scale a rate, or count samples."""
        if self.processes == 1 or self.phase is Phase.SETUP or self.phase in BODY or not self.counts:
            return self.processes
        if operation != "truediv" or not self.reduced:
            refuse("arithmetic with the world size between two loops", "make it before the first loop")
        return 1

    def knows(self, obj: Any) -> bool:
        """Whether the state of ``obj`` moves with the job, or is that of this process."""
        if isinstance(obj, torch.Tensor):
            return any(obj is p for model in self.models for p in model.parameters())
        if any(obj is made for made in (*self.made, *self.models)):
            return True
        if isinstance(obj, nn.Module):
            held = {id(p) for model in self.models for p in model.parameters()}
            averages = [a for a in self.made if isinstance(a, nn.Module)]
            parameters = [*obj.parameters()]
            return (bool(parameters) and all(id(p) in held for p in parameters)) or any(
                obj is inner for average in averages for inner in average.modules()
            )
        own = type(obj).__module__.partition(".")[0] in ("tqdm", "logging")
        return own or isinstance(obj, type | ModuleType | torch.optim.Optimizer)

    def epoch_of(self, loader: Any, by_loop: int | None) -> int:
        """Which epoch of the job the pass is that begins. ``by_loop``: as of :func:`epoch_in`."""
        self.reduced = False
        count = self.passes.get(loader, 0)
        self.passes[loader] = count + 1
        return count if by_loop is None else by_loop

    def loader_of(self, loader: Any) -> OfLoader:
        """The job's loader for one of the script, which has its order."""
        if loader not in self.loaders:
            if self.loaders:
                refuse("a second DataLoader trains: the epochs of a job are those of one", "run them one after another")
            self._track()
            order = Order(loader.sampler, loader.batch_size, self.torch.shard)
            options = {name: getattr(loader, name) for name in OPTIONS}
            if loader.num_workers:
                options["prefetch_factor"] = loader.prefetch_factor
            made = self.job.dataloader(
                loader.dataset, global_batch_size=loader.batch_size * self.processes, sampler=order,
                drop_last=loader.drop_last, **options,
            )  # fmt: skip
            self.loaders[loader] = OfLoader(made, order)
        return self.loaders[loader]

    def _track(self) -> None:
        kinds: dict[str, list[Any]] = {"optimizer": [], "other": []}
        for made in self.made:
            kinds["optimizer" if isinstance(made, torch.optim.Optimizer) else "other"].append(made)
        for kind, objects in kinds.items():
            self.job.track(**{f"{kind}{number}": obj for number, obj in enumerate(objects)})
        self.job.track(script=self.variables)

    def report_once(self) -> None:
        """Before the first step: what is tracked, carried and substituted. Raises :class:`Refused` for the rest."""
        self.said.check_files()
        self.check_variables()
        if self.reported or not self.first or not self.fresh:
            return
        self.reported = True
        lines = [
            f"global batch, DistributedSampler's order and get_world_size() are those of {self.processes} processes",
            f"tracked: {', '.join(type(made).__name__ for made in self.made) or 'nothing'}; models: {len(self.models)}",
            f"carried: {', '.join(sorted(self.variables.places())) or 'nothing'}",
            "substituted: DDP, DistributedSampler, DataLoader, backward, torch.save, print, open, logging, rank",
        ]
        if any(type(m).__name__.startswith("BatchNorm") for model in self.models for m in model.modules()):
            lines.append("BatchNorm: its statistics are those of a worker's part, as in DDP with as many processes")
        sys.stderr.write("".join(f"elastrain exec: {line}\n" for line in lines))

    def check_variables(self) -> None:
        """Raises :class:`Refused` for what loops change and nothing carries."""
        if lacking := [*self.variables.lacking.values()]:
            one = lacking[0]
            more = f" (and {', '.join(found.name for found in lacking[1:4])})" if lacking[1:] else ""
            refuse(
                f"{one.name} ({one.kind}){more} changes in a loop, and nothing carries it to a worker that joins",
                "keep numbers, tensors or objects of classes of the script, or job.track() it in a converted script",
                at=(one.file, one.line),
            )
