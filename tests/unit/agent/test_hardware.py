"""Texts of real failures, from public issues, and whose they are."""

from __future__ import annotations

import pytest

from elastrain.agent.core import endings
from elastrain.agent.core.events import RankExited
from elastrain.agent.core.hardware import why_infrastructure
from elastrain.api.names import DEVICE_FAILED, EXIT_INFRASTRUCTURE, NETWORK_FAILED

HINT = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1.\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
IN_C10D = "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:317, "
TEXTS = {
    DEVICE_FAILED: [
        "RuntimeError: CUDA error: uncorrectable ECC error encountered" + HINT,
        "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\nSearch for "
        "`cudaErrorECCUncorrectable' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html" + HINT,
        "RuntimeError: cuda runtime error (39) : uncorrectable ECC error encountered at /pytorch/aten/src/THC/x.cpp:1",
        "RuntimeError: CUDA error: unspecified launch failure" + HINT,
        "RuntimeError: CUDA error: unknown error" + HINT,
        "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution" + HINT,
        "RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable" + HINT,
        "RuntimeError: CUDA error: the launch timed out and was terminated" + HINT,
        "RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle, opa, opb, m, n)`",
        IN_C10D + "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.19.3\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 719 'unspecified launch'",
        "RuntimeError: NVML: GPU is lost. Reboot the system to recover this GPU (Xid 79, fallen off the bus)",
    ],
    NETWORK_FAILED: [
        IN_C10D + "remote process exited or there was a network error, NCCL version 2.21.5\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\nsocketProgressOpt: Call to recv from 172.16.0.1<33759> failed : Connection reset by peer",
        IN_C10D + "internal error, NCCL version 2.14.3\nncclInternalError: Internal check failed.\nLast error:\n"
        "Net : Connection closed by remote peer user<50260>",
        IN_C10D + "unhandled system error, NCCL version 2.18.6\nncclSystemError: System call (e.g. socket) failed",
        "elastrain.elastic.group.shell.NotConnected: could not connect to 8 generations in a row; the last: "
        "PeerLost: could not connect to every peer: [Errno 113] No route to host",
        "elastrain.elastic.comm.stock.nccl.InitialisationFailed: NCCL has not connected 4 ranks within 30 s",
    ],
    "": [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB",
        "RuntimeError: CUDA error: out of memory" + HINT,
        "RuntimeError: CUDA error: device-side assert triggered" + HINT,
        "RuntimeError: CUDA error: an illegal memory access was encountered" + HINT,
        "RuntimeError: CUDA error: invalid device ordinal" + HINT,
        "RuntimeError: CUDA error: no kernel image is available for execution on the device" + HINT,
        "RuntimeError: CUDA error: misaligned address" + HINT,
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a "
        "non-contiguous input.",
        IN_C10D + "invalid usage, NCCL version 2.17.1\nncclInvalidUsage: This usually reflects invalid usage of NCCL "
        "library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 100000",
        "ValueError: the batch is empty",
        "KeyError: 'eccentricity'",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)",
    ],
}
TRACEBACK = 'epoch 3\nTraceback (most recent call last):\n  File "/app/train.py", line 3, in <module>\n    step()\n'


@pytest.mark.parametrize(("reason", "text"), [(reason, text) for reason, texts in TEXTS.items() for text in texts])
def test_a_failure_of_the_machine_is_told_from_the_scripts_own_by_its_text(reason, text):
    log = TRACEBACK + text
    assert why_infrastructure(log) == reason
    assert why_infrastructure("".join(f"[rank3]: {line}\n" for line in log.splitlines())) == reason
    ended = endings.script_failed(7, RankExited(1, 0, code=1, log_tail=log), 3)
    assert (ended.exit_code == EXIT_INFRASTRUCTURE) == bool(reason)
    assert ended.reason == (reason or "ScriptFailed")
    assert ended.message.startswith(text.splitlines()[0][:80])
    assert (ended.rank, ended.signal) == (3, 0)


def test_a_wrong_index_is_the_scripts_if_it_shows_as_a_failure_of_cublas():
    text = "RuntimeError: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm( handle)`"
    kernel = "../aten/src/ATen/native/cuda/Indexing.cu:1292: indexSelectLargeIndex: block: [0,0,0], thread: [0,0,0] "
    assert why_infrastructure(kernel + "Assertion `srcIndex < srcSelectDimSize` failed.\n" + TRACEBACK + text) == ""


def test_an_error_counts_only_if_the_script_ended_by_it():
    survived = TRACEBACK + TEXTS[DEVICE_FAILED][0]
    assert why_infrastructure(survived + "\nretrying\n" + TRACEBACK + "ValueError: no data") == ""
    assert why_infrastructure("NCCL error, retrying\nXid 79\n") == "", "no traceback: nothing is known"
