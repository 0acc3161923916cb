"""A torch whose private names do not serve is refused by name in job.wrap(), before the job trains."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_state

from elastrain.api.settings import Transport
from elastrain.api.shape import Shape
from elastrain.elastic import torch_private, torch_probes
from elastrain.elastic.comm.stock import groups as stock
from elastrain.elastic.job import Job
from elastrain.elastic.strategies.replicated import Replicated
from elastrain.elastic.strategies.sharding.fully_sharded import FullySharded
from elastrain.elastic.strategies.sharding.sharded import Sharded
from elastrain.elastic.torch_probes import EVERY_JOB, ONE_COPY, OVER_GLOO, SHARDED, Need, Unusable, check, untested
from elastrain_bitwise.strategy import Bitwise


@pytest.fixture(autouse=True)
def unproven(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No probe has passed in this process."""
    monkeypatch.setattr(torch_probes, "_passed", set())
    yield


@pytest.mark.parametrize(
    "strategy", [Replicated, Bitwise, Sharded(Shape.of(2), 0, "gloo"), FullySharded(lambda _: (1, 0), "gloo")]
)
def test_every_probe_of_a_strategy_passes_on_this_torch(strategy: Any) -> None:
    check(strategy.needs)


@pytest.mark.parametrize("demanded", ["auto", "tcp", "nccl"])
def test_gloo_is_proven_only_if_it_is_asked_for(demanded: Transport) -> None:
    assert Sharded(Shape.of(2), 0, demanded).needs == Sharded.needs
    assert FullySharded(lambda _: (1, 0), demanded).needs == FullySharded.needs


def read_only(name: str) -> Any:
    return property(lambda self: None, doc=f"{name} has no setter")


def stale(self: Any, tensor: torch.Tensor) -> Any:
    """As a torch that caches where the shards of a parameter lie, under a name that is not known."""
    self.cached = getattr(self, "cached", self._sharding_spec)
    return torch.distributed.tensor.DTensor(tensor, self.cached, requires_grad=False)


@pytest.mark.parametrize(
    ("needs", "owner", "name", "value", "said"),
    [
        (
            EVERY_JOB,
            nn.Module,
            "_non_persistent_buffers_set",
            read_only(""),
            "every job needs .*_non_persistent_buffers_set",
        ),
        (EVERY_JOB, torch_private.pytree, "keystr", None, "the transfer of the state needs .*_pytree"),
        (EVERY_JOB, torch_private, "foreach_norm", lambda tensors, ord, dtype: [torch.ones(())], "another meaning"),
        (SHARDED, _fsdp_state.FSDPState, "_root_post_backward_final_callback", None, "spec.parallelism.shards needs"),
        (OVER_GLOO, stock, "_ends_of", lambda _: [b"of another form"], "=gloo needs .*or leave it out of the template"),
        (OVER_GLOO, stock.Breaker, "shut", lambda _: None, "=gloo needs .*another meaning"),
        (OVER_GLOO, stock, "_OF_GLOO", re.compile("of another form"), "=gloo needs .*another meaning"),
        (ONE_COPY, _fsdp_param.FSDPParam, "mesh_info", read_only("mesh_info"), "shards: all needs .*FSDPParam"),
        (ONE_COPY, _fsdp_param.FSDPParam, "to_sharded_dtensor", stale, "shards: all needs .*or set shards to a number"),
    ],
)
def test_what_does_not_serve_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, needs: tuple[Need, ...], owner: Any, name: str, value: Any, said: str
) -> None:
    monkeypatch.setattr(owner, name, value, raising=False)
    monkeypatch.setattr(torch_probes, "_GLOO_SECONDS", 1.0)
    with pytest.raises(Unusable, match=said) as refused:
        check(needs)
    assert torch.__version__ in str(refused.value) and "install torch 2.12, 2.13 or 2.15" in str(refused.value)


def test_a_need_that_is_not_met_is_refused_by_wrap_and_at_no_time_later() -> None:
    def fails() -> None:
        raise AttributeError("no such name")

    strategy = SimpleNamespace(needs=(Need("X._y", "this job", fails),))
    job = object.__new__(Job)
    job._strategy = strategy  # type: ignore[assignment]
    job._loop = SimpleNamespace(contract=SimpleNamespace(acts=lambda *_: True))  # type: ignore[assignment]
    job._tracker = SimpleNamespace(names_of_model=lambda *_: ("model", "optimizer"))  # type: ignore[assignment]
    with pytest.raises(Unusable, match=r"this job needs .*X\._y.*AttributeError: no such name"):
        Job.wrap.__wrapped__(job, nn.Linear(1, 1))  # type: ignore[attr-defined]


def test_a_probe_runs_once_in_a_process() -> None:
    calls: list[int] = []
    need = Need("X._y", "this job", lambda: calls.append(1))
    check([need, need])
    check([need])
    assert calls == [1]


@pytest.mark.parametrize("version", ["2.12.1+cu130", "2.13.0+cpu", "2.13.1", "2.15.0+cu132"])
def test_a_tested_version_gives_no_warning(version: str) -> None:
    assert untested(version) is None


@pytest.mark.parametrize("version", ["2.11.0", "2.14.1+cpu", "3.0.0", "2.16.0.dev20260901+cpu"])
def test_an_untested_version_is_named(version: str) -> None:
    assert (said := untested(version)) is not None and version in said and "2.12, 2.13, 2.15" in said


@pytest.mark.skipif(not dist.is_nccl_available(), reason="this build of torch has no NCCL")
def test_nccl_has_what_is_used_of_it() -> None:
    """No group is made: without a driver its end is the end of the process."""
    kind = dist.distributed_c10d.ProcessGroupNCCL
    used = ("abort", "allreduce", "eager_connect_single_device", "get_error", "shutdown", "_comm_ptr")
    assert [name for name in used if not callable(getattr(kind, name, None))] == []
    options = torch_private.nccl_options(timedelta(seconds=5))
    assert (options.config.blocking, options._timeout) == (1, timedelta(seconds=5))
