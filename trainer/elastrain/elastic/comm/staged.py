"""Sums of tensors on CUDA devices through the host's memory, where NCCL cannot be used."""

from __future__ import annotations

from collections.abc import Callable

import torch

from elastrain.elastic.comm.header import Label
from elastrain.elastic.comm.tcp_allreduce import TcpAllreduce
from elastrain.elastic.comm.transport import future_on


class StagedAllreduce:
    """A :class:`elastrain.elastic.comm.transport.Transport` that copies to the host, sums there, and copies back."""

    def __init__(self, on_host: TcpAllreduce, failed: Callable[[Exception], None]) -> None:
        """``failed(error)`` is called, in any thread, if the copy back to the device fails."""
        self._on_host, self._failed = on_host, failed
        self._stream: torch.cuda.Stream | None = None

    def takes(self, tensor: torch.Tensor) -> bool:
        return bool(tensor.is_cuda) and tensor.layout is torch.strided and tensor.is_contiguous()

    def sum(self, buffer: torch.Tensor, label: Label) -> torch.futures.Future[torch.Tensor]:
        stream = self._stream = self._stream or torch.cuda.Stream(buffer.device)
        staged = torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True)
        staged.copy_(buffer, non_blocking=True)
        copied = torch.cuda.Event(blocking=True)
        copied.record(torch.cuda.current_stream(buffer.device))
        done = future_on(buffer)

        def bring_back(_: torch.futures.Future[torch.Tensor]) -> None:
            # A future records the stream that is current when it gets its value: awaiting it orders the caller's stream
            # after this copy.
            try:
                with torch.cuda.stream(stream):
                    buffer.copy_(staged, non_blocking=True)
                    done.set_result(buffer)
            except Exception as e:  # torch would only log it, and the future would never complete
                self._failed(e)
                done.set_exception(e)  # type: ignore[no-untyped-call, unused-ignore]

        (summed,) = self._on_host.sum_together(staged, label=label, before=copied.synchronize)
        summed.add_done_callback(bring_back)
        return done
