"""The systems under test: those of ``bench_rescale``, and a torchrun that outlives the loss of any node."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping

from bench_ettr.account import Mark, marks, marks_of_any
from bench_harness.names import BATCH_PER_RANK
from bench_harness.processes import HOST, listens, popen
from bench_rescale.steplog import Line
from bench_rescale.systems import Elastrain, System, TorchftTuned, TorchrunFsdp

STORE = """
import signal, sys
from torch.distributed import TCPStore
store = TCPStore(sys.argv[1], int(sys.argv[2]), is_master=True, wait_for_workers=False)
signal.pause()
"""
SERVES_SECONDS = 60.0


class TorchrunDcp(TorchrunFsdp):
    about = (
        "DDP under stock torchrun, tuned (last_call_timeout=1, keep_alive_interval=1, keep_alive_max_attempt=3, "
        "monitor interval 0.1 s), DCP in the background; the c10d store runs outside of the nodes"
    )
    sharding = "none"
    store_in_node_0 = False

    def __enter__(self) -> System:
        with (self.directory / "store.log").open("ab") as log:
            self._store = popen([sys.executable, "-c", STORE, HOST, str(self._port)], log, os.environ)
        end = time.monotonic() + SERVES_SECONDS
        while not listens(self._port):
            if self._store.poll() is not None or time.monotonic() > end:
                self.__exit__()
                raise RuntimeError(f"the c10d store does not serve; see {self.directory / 'store.log'}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._store.kill()
        self._store.wait()

    @property
    def service_pids(self) -> tuple[int, ...]:
        return (self._store.pid,)


class Torchft(TorchftTuned):
    shards = 10_000  # replaced nodes are many


SYSTEMS: Mapping[str, type[System]] = {"elastrain": Elastrain, "torchrun-dcp": TorchrunDcp, "torchft": Torchft}


def committed(system: System, lines: list[Line], ranks: int) -> list[Mark]:
    """The steps of the job, as its figures count them: elastrain keeps the global batch, the others that of a rank."""
    if isinstance(system, TorchftTuned):
        return marks_of_any(lines, BATCH_PER_RANK)
    return marks(lines, BATCH_PER_RANK, BATCH_PER_RANK * ranks if isinstance(system, Elastrain) else None)
