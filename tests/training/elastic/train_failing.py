"""``train_float64.py`` on a rank that fails itself: ``FAIL_IN`` names the section, ``FAIL_BY`` the error.

From the start on, or as soon as the file ``fail`` is in the folder of the test (``FAIL_LATER=1``).
"""

import errno
import os
import pickle
import runpy
import sys
from pathlib import Path

import torch

from elastrain.elastic.comm import tcp_allreduce
from elastrain.elastic.commit import vouched
from elastrain.elastic.group import calls, connecting, position, rank_state, world
from elastrain.elastic.state import transfer

SECTIONS = {
    "connect": (connecting, "Communicator"),
    "entry": (position.Position, "meet"),
    "send": (transfer.SmallState, "__init__"),
    "receive": (transfer, "_allocate"),
    "load": (rank_state.RankState, "load"),
    "sums": (tcp_allreduce.TcpAllreduce, "_sum"),
    "vote": (vouched.AgentVouch, "wait"),
    "switch": (world.World, "_hand_over"),
    "barrier": (calls.Calls, "attempt"),
}
ERRORS = {
    "OSError": lambda: OSError(errno.EMFILE, "Too many open files"),
    "RuntimeError": lambda: RuntimeError("a reset buffer"),
    "OutOfMemoryError": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "CUDA": lambda: RuntimeError("CUDA error: uncorrectable ECC error encountered"),
    "NCCL": lambda: RuntimeError("NCCL error in: NCCLUtils.hpp:268, unhandled cuda error, NCCL version 2.27.3"),
    "KeyError": lambda: KeyError("offer/1"),
    "PicklingError": lambda: pickle.PicklingError("cannot pickle '_thread.lock' object"),
    "SystemExit": lambda: SystemExit(3),
}

if __name__ == "__main__":
    place, name = SECTIONS[os.environ["FAIL_IN"]]
    error, later = ERRORS[os.environ["FAIL_BY"]], "FAIL_LATER" in os.environ
    whole = getattr(place, name)

    def failing(*args: object, **kwargs: object) -> object:
        if later and not (Path(sys.argv[1]) / "fail").exists():
            return whole(*args, **kwargs)
        raise error()

    setattr(place, name, failing)
    runpy.run_path(str(Path(__file__).with_name("train_float64.py")), run_name="__main__")
