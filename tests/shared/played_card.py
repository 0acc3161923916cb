"""A device that there is not: its tensors lie in the host's memory, and it works only while the host waits for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, ClassVar

import pytest
import torch


class PlayedCard:
    """Its one stream, and what the host asks of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.page_locked: list[int] = []
        """Bytes of the host's memory, of each request."""
        self.refuses = False
        """Whether none can be page-locked."""
        self.works = threading.Event()
        """Clear: it is behind, and the host waits."""
        self.works.set()
        self.done = 0
        """Pieces of work."""
        self._work: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()

    def queue(self, work: Callable[[], object]) -> None:
        with self._lock:
            self._work.append(work)

    @property
    def queued(self) -> int:
        """All work so far."""
        return self.done + len(self._work)

    def run(self, until: int | None = None) -> None:
        """Do the work in its order; ``until``: so many pieces of all."""
        assert self.works.wait(30)
        with self._lock:
            while self._work and (until is None or self.done < until):
                self._work.popleft()()
                self.done += 1


class OnCard(torch.Tensor):
    """A tensor of the card. Copies that need not block are queued."""

    is_cuda = True
    device = torch.device("cuda", 0)  # type: ignore[assignment, unused-ignore]
    card: ClassVar[PlayedCard]

    @classmethod
    def __torch_function__(cls, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if call is torch.Tensor.copy_ and (kwargs or {}).get("non_blocking"):
            into, source = (tensor.as_subclass(torch.Tensor) for tensor in args)
            cls.card.queue(lambda: into.copy_(source))
            return args[0]
        return super().__torch_function__(call, types, args, kwargs or {})


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedCard]:
    played, empty = PlayedCard(), torch.empty

    class Event:
        def __init__(self, *, blocking: bool) -> None:
            assert blocking, "a host that spins takes a core from the loaders"

        def record(self, stream: str) -> None:
            played.asked.append(f"event on {stream}")
            self._behind = played.queued

        def synchronize(self) -> None:
            played.asked.append("wait")
            played.run(self._behind)

    def of_host(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        if pin_memory and played.refuses:
            raise RuntimeError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`")
        made = empty(*args, **kwargs)
        if pin_memory:
            played.page_locked.append(made.nbytes)
            made.view(-1).view(torch.uint8).fill_(0xAA)  # what was there before
        return made

    monkeypatch.setattr(OnCard, "card", played, raising=False)
    monkeypatch.setattr(torch, "empty", of_host)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", lambda _device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: "the step's stream")
    yield played
    played.run()
