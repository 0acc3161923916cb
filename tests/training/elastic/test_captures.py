"""A capture of a CUDA graph, and calls of NCCL in other threads: never at the same time.

Stand-ins for graphs and device: what a capture does not bear is a call between its two methods.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conditions import eventually
from elastrain.elastic import torch_private
from elastrain.elastic.comm import tcp_allreduce
from elastrain.elastic.comm.backend import Backend, Offer
from elastrain.elastic.comm.header import Label
from elastrain.elastic.comm.stock import captures, nccl
from elastrain.elastic.comm.stock.captures import Captures
from elastrain.elastic.comm.stock.watchdog import Mates
from elastrain.elastic.comm.tcp_allreduce import StagedAllreduce
from elastrain.elastic.comm.transport import completed
from elastrain.elastic.group.connecting import Connector
from elastrain.elastic.state import transfer
from elastrain.elastic.state.host_copy import HostCopy
from played_card import OnCard

CUDA = torch.device("cuda", 0)


class Graph:
    """As ``torch.cuda.CUDAGraph``."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails

    def capture_begin(self, *_pool: Any, **_options: Any) -> None:
        if self.fails == "begin":
            raise RuntimeError("a capture is under way already")

    def capture_end(self) -> None:
        if self.fails == "end":
            raise RuntimeError("the capture was spoilt")


class GraphOfTorch215(Graph):
    def capture_end_pre(self) -> None:
        super().capture_end()

    def capture_end(self) -> None:
        self.capture_end_pre()


@pytest.fixture(params=[Graph, GraphOfTorch215])
def watched(request, monkeypatch: pytest.MonkeyPatch) -> Iterator[Captures]:
    """The captures of a process whose graphs are stand-ins."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", type("Graph", (request.param,), {}))
    monkeypatch.setattr(torch, "accelerator", SimpleNamespace(Graph=type("Graph", (Graph,), {})))
    fresh = Captures()
    monkeypatch.setattr(captures, "CAPTURES", fresh)
    monkeypatch.setattr(nccl, "CAPTURES", fresh)
    fresh.watch()
    yield fresh


class Ncclgroup:
    """As ``ProcessGroupNCCL``."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note = note

    def abort(self) -> None:
        self.note("abort")

    def shutdown(self) -> None:
        self.note("shutdown")


def calls(monkeypatch: pytest.MonkeyPatch, note: Callable[[str], None]) -> dict[str, Callable[[], object]]:
    """Each call beside the training thread that may wait for the device."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (0, 1))
    monkeypatch.setattr(torch.cuda, "device", lambda _: threading.Lock())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: note("empty_cache"))
    monkeypatch.setattr(nccl, "open_backend", lambda *_: note("open_backend"))
    monkeypatch.setattr(nccl, "revoke", lambda *_: note("revoke"))
    store: Any = None

    def made() -> nccl.Nccl:
        return nccl.Nccl(Ncclgroup(note), store, CUDA, Mates({}))

    return {
        "empty_cache": lambda: nccl.make_room(CUDA),
        "open_backend": lambda: nccl._Attempt(store, 0, 1, CUDA).done.wait(30),
        "shutdown": lambda: made().finish(),
        "abort": lambda: made().close(),
    }


@pytest.mark.parametrize("kind", ["cuda", "accelerator"])
@pytest.mark.parametrize("call", ["empty_cache", "open_backend", "shutdown", "abort"])
def test_a_call_of_another_thread_waits_for_the_end_of_a_capture(watched, monkeypatch, call, kind) -> None:
    order: list[str] = []
    run = calls(monkeypatch, order.append)[call]
    graph = torch.cuda.CUDAGraph() if kind == "cuda" else torch.accelerator.Graph()
    graph.capture_begin()
    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: watched.waiting, what="the call waits")
    order.append("captured")
    graph.capture_end()
    thread.join()
    assert order[0] == "captured" and call in order[1:]


def test_captures_of_the_installed_torch_begin_and_end_by_what_is_watched(watched, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda.graph, "default_capture_stream", "a stream")
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    monkeypatch.setattr("torch._C._host_emptyCache", lambda: None, raising=False)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        assert watched._captures == 1
    assert watched._captures == 0


def test_a_capture_waits_for_the_end_of_a_call_of_another_thread(watched) -> None:
    order: list[str] = []

    def capture() -> None:
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        order.append("capture")
        graph.capture_end()

    thread = threading.Thread(target=capture)
    with watched.exclude("a call"):
        thread.start()
        eventually(lambda: watched.waiting, what="the capture waits")
        order.append("call")
    thread.join()
    assert order == ["call", "capture"]


@pytest.mark.parametrize("fails", ["begin", "end"])
def test_no_call_waits_for_a_capture_that_has_failed(watched, fails) -> None:
    graph: Any = torch.cuda.CUDAGraph(fails)
    with pytest.raises(RuntimeError):
        graph.capture_begin()
        graph.capture_end()
    with watched.exclude("a call"):
        assert not watched._captures


@pytest.mark.parametrize("watched", [GraphOfTorch215], indirect=True)
def test_no_call_waits_for_a_capture_that_torch_gives_up_at_its_beginning(watched) -> None:
    graph: Any = torch.cuda.CUDAGraph()
    graph.capture_begin()
    graph.capture_end_pre()
    assert not watched._captures


def test_waits_are_bounded_if_a_capture_never_ends_or_a_call_hangs(watched, monkeypatch) -> None:
    monkeypatch.setattr(captures, "APART_SECONDS", 0.01)
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    with watched.exclude("a call"):
        torch.cuda.CUDAGraph().capture_begin()
        monkeypatch.setattr(captures, "STUCK_SECONDS", 0.0)
        monkeypatch.setattr(captures, "APART_SECONDS", 60.0)
        torch.cuda.CUDAGraph().capture_begin()  # at once: the call hangs


class Driver:
    """NVIDIA's: of each thread, how captures bear its calls."""

    def __init__(self) -> None:
        self.modes: dict[int, int] = {}
        self.seen: list[int] = []
        """That of this thread, at each wait and change of its stream."""

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> None:
        here, value = threading.get_ident(), mode._obj
        self.modes[here], value.value = value.value, self.modes.get(here, 0)


@pytest.fixture
def driver(card, monkeypatch: pytest.MonkeyPatch) -> Driver:
    played, here = Driver(), threading.get_ident()
    wait = torch.cuda.Event.synchronize
    monkeypatch.setattr(ctypes, "CDLL", {"libcuda.so.1": played}.__getitem__)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _device: "a stream of its own")
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext(played.seen.append(played.modes.get(here, 0))))
    monkeypatch.setattr(
        torch.cuda.Event, "synchronize", lambda e: played.seen.append(played.modes.get(here, 0)) or wait(e)
    )
    return played


class OnHostAlone:
    def sum_together(self, staged: torch.Tensor, *, label: Label, before: Callable[[], None]) -> list[Any]:
        before()
        return [completed(staged)]


def test_a_capture_bears_the_copies_and_waits_of_other_threads(driver, monkeypatch) -> None:
    here, value = threading.get_ident(), torch.ones(3).as_subclass(OnCard)
    monkeypatch.setattr(tcp_allreduce, "future_on", lambda _: torch.futures.Future())
    alone: Any = OnHostAlone()
    with pytest.raises(ConnectionError), transfer.apart([value]):
        raise ConnectionError
    assert driver.seen == [2], "a state that travels"
    HostCopy().take({"value": value}).complete()
    assert driver.seen[1:] == [2], "a save"
    StagedAllreduce(alone, lambda _: None).sum(value, Label()).wait()
    assert driver.seen[2:] == [2, 2], "a sum through the host"
    assert driver.modes[here] == 0
    driver.modes.clear()
    with transfer.apart([torch.ones(1)]):
        assert not driver.modes


def test_a_machine_without_the_driver_has_no_captures(monkeypatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with captures.relaxed():
        pass


@pytest.mark.parametrize(
    ("offer", "watches"),
    [
        (Offer(Backend.NCCL), True),
        (Offer(inner=Backend.NCCL), True),
        (Offer(), False),
        (Offer(inner=Backend.GLOO), False),
    ],
)
def test_graphs_of_the_script_are_watched_if_its_model_may_use_nccl(monkeypatch, offer, watches) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(torch_private, "watch_captures", lambda *given: seen.append(given))
    fresh = Captures()
    monkeypatch.setattr("elastrain.elastic.group.connecting.CAPTURES", fresh)
    unused: Any = None
    for _ in range(2):
        Connector(unused, unused, unused, unused).use(offer, CUDA)
    assert seen == [(fresh.begins, fresh.ended)] * watches
