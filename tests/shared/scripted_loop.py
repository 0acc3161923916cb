"""A job of one rank for the loops of frameworks: what becomes of its loop bodies is written down before."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from elastrain.elastic.comm.header import RanksDiverged
from elastrain.elastic.contract import RULES, Effect, Phase

OUTCOMES = {
    "warm-up": Phase.WARM_UP,
    "partial": Phase.PARTIAL,
    "discarded": Phase.DISCARDED,
    "adopted": Phase.DISCARDED,
    "committed": Phase.COMMITTED,
}
ASSERTED = ("trainer", "callbacks", "files", "numbers")
"""Tracked by adapters."""


class Killed(BaseException):
    """The process has ended here."""


class ScriptedJob:
    """Executions of the loop body end as ``outcomes`` say, and then in commits.

    ``start``: it joins at this step. State that it receives is that of ``peer``, which has run before.
    """

    device, chooses_batch, switches = torch.device("cpu"), False, False

    def __init__(self, *outcomes: str, start: int = 0, peer: ScriptedJob | None = None, rank: int = 0) -> None:
        self.outcomes, self.start, self.peer, self._rank = [*outcomes], start, peer, rank
        self.left = itertools.chain(self.outcomes, itertools.repeat("committed"))
        self.executions = 0
        self.step, self.phase, self.body, self.stopped, self.met = 0, Phase.SETUP, None, False, 0
        self.tracked: dict[str, Any] = {}
        self.callbacks: list[Any] = []
        self.states: dict[int, dict[str, Any]] = {}
        self.others: dict[str, float] = {}
        """What the other ranks add to each step's sums."""
        self.added: tuple[int, Counter[str]] = (0, Counter())
        self.ranks: dict[int, int] = {}
        """By execution: the rank from then on."""
        self.rank_at_end: int | None = None
        self.apart: str | None = None
        """What this rank and another one do, if they do not meet."""
        self.switch_behind: set[int] = set()
        """Executions behind which the generation changes as all ranks have agreed."""
        self.dies_at = 10**6
        """The execution in which the process is killed, before its backward."""

    @property
    def rank(self) -> int:
        return 0 if self.phase is Phase.SETUP or (self.body is not None and self.body.warm_up) else self._rank

    def wrap(self, module, **_):
        self.tracked["model"] = module
        return module

    def track(self, **objects):
        assert not objects.keys() & self.tracked.keys()
        self.tracked.update(objects)

    def on_commit(self, callback):
        self.callbacks.append(callback)

    def dataloader(self, dataset, *, global_batch_size, **options):
        self.options = {"global_batch_size": global_batch_size, **options}
        self.data = torch.utils.data.DataLoader(
            dataset, batch_size=global_batch_size, collate_fn=options.get("collate_fn")
        )
        order = SimpleNamespace(
            length=len(dataset), global_batch_size=global_batch_size, drop_last=False, steps_per_epoch=len(self.data)
        )
        return Loader(dataset, order)

    def steps(self, loader, *, steps=None, epochs=1, warm_up=None):
        batches = [*self.data]
        steps = epochs * len(batches) if steps is None else steps
        if self.phase is Phase.SETUP:
            self._begin("warm-up", 0, batches[0])
            if warm_up is None:
                yield batches[0]
            else:
                warm_up(batches[0])
            if self.peer:
                self.receive(self.start)
            self.step = self.start
            self._keep()
            if warm_up is not None:
                self.body, self.phase = None, Phase.BOUNDARY
                yield None
        fresh = True
        while self.step < steps and not self.stopped:
            outcome = next(self.left)
            self.executions += fresh
            self._rank = self.ranks.get(self.executions, self._rank)
            batch, fresh, self.boundary = batches[self.step % len(batches)], outcome != "partial", False
            self._begin(outcome, self.executions, batch)
            yield batch
            if outcome in ("committed", "adopted"):
                for callback in self.callbacks:
                    callback()
            if outcome == "committed":
                self.step += 1
                self._keep()
            if outcome == "adopted":
                self.receive(self.step + 1)
            if self.boundary:
                self.body, self.phase = None, Phase.BOUNDARY
                yield None
        self.body, self.phase = None, Phase.BETWEEN
        self._rank = self._rank if self.rank_at_end is None else self.rank_at_end

    def _begin(self, outcome, execution, batch):
        samples = len(batch[0]) if isinstance(batch, list) else 0
        self.body = SimpleNamespace(execution=execution, warm_up=outcome == "warm-up", samples=samples)
        self.outcome, self.phase, self.switches = outcome, Phase.FRESH, execution in self.switch_behind

    def _keep(self):
        self.states[self.step] = copy.deepcopy({name: obj.state_dict() for name, obj in self.tracked.items()})

    def receive(self, step):
        for name, state in copy.deepcopy(self.peer.states[step] if self.peer else {}).items():
            self.tracked[name].load_state_dict(state)
            if name in ASSERTED:
                assert self.tracked[name].state_dict() == state, "as the job asserts"
        self.step = step

    def commit(self, bodies):
        self.boundary = True
        next(bodies)

    def backward(self, loss, **_):
        if self.body.execution >= self.dies_at:
            raise Killed
        loss.backward()
        self.phase = OUTCOMES[self.outcome]
        return loss.detach().double()

    def add(self, **numbers):
        assert self.phase in (Phase.FRESH, Phase.PARTIAL)
        if self.added[0] != self.body.execution:
            self.added = self.body.execution, Counter(self.others)
        self.added[1].update(numbers)

    @property
    def sums(self):
        return self.added[1]

    def clip_grad_norm_(self, max_norm, norm_type=2.0):
        return nn.utils.clip_grad_norm_(self.tracked["model"].parameters(), max_norm)

    @property
    def committed(self):
        return self.phase is Phase.COMMITTED

    def acts(self, call, name):
        effect = RULES[call][self.phase].effect
        assert effect is not Effect.RAISES, f"{name} {self.phase}"
        return effect is Effect.ACTS

    def stop(self):
        self.stopped = True

    def all_reduce(self, value, op):
        assert self.body is None
        if self.apart is not None:
            raise RanksDiverged(self.apart)
        self.met += 1
        return value


class Loader:
    randomness = None

    def __init__(self, dataset, order):
        self.dataset, self.order = dataset, order

    def __len__(self):
        return self.order.steps_per_epoch
