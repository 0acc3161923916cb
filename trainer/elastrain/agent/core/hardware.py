"""Whether a script failed by its machine: devices and networks speak in ``RuntimeError``. Pure.

Only the last error of the log counts, with the lines of its message: a library may log many that it survives. The texts
are CUDA's, cuDNN's, cuBLAS' and NCCL's own (docs/lifecycle.md has the table). What a script's own kernels and sizes
cause stays the script's failure: it would repeat on any machine.
"""

from __future__ import annotations

import re

from elastrain import tracebacks
from elastrain.api.names import DEVICE_FAILED, NETWORK_FAILED

_OF_THE_SCRIPT = re.compile(
    r"""
    out\ of\ memory | OutOfMemoryError | alloc_failed | alloc\ failed         # sizes
    | device-side\ assert\ triggered | Assertion\ .*\ failed                             # an index beyond a table, say
    | illegal\ (memory\ access|address|instruction) | misaligned\ address | invalid\ (program\ counter|address\ space)
    | invalid\ (device\ (ordinal|function|symbol)|argument|configuration|resource\ handle|value|usage) | invalidusage
    | no\ kernel\ image | driver\ version\ is\ insufficient | too\ many\ resources
    | capturing | capture | forked\ subprocess | not.supported | bad_param | not_initialized
    """,
    re.IGNORECASE | re.VERBOSE,
)
_OF_A_DEVICE = re.compile(
    r"""
    CUDA(\ runtime)?\ error\b | cudaError | CUDA_ERROR_ | CUDA\ driver\ error
    | cuDNN\ error | CUDNN_STATUS_ | CUBLAS_STATUS_ | cuBLAS\ error | CUFFT_INTERNAL_ERROR
    | uncorrectable | \bECC\b | \bXid\b | fallen\ off\ the\ bus | GPU\ is\ lost | unhandled\ cuda\ error
    | HIP\ error
    """,
    re.IGNORECASE | re.VERBOSE,
)
_OF_THE_NETWORK = re.compile(r"NCCL error|nccl(Remote|System|Internal)Error|\bNCCL\b.*\bconnect|NotConnected")


def why_infrastructure(log: str) -> str:
    """The reason if the script ended by its machine, as far as the end of ``log`` tells; else an empty string."""
    error = _last_error(log)
    if not error or _OF_THE_SCRIPT.search(error):
        return ""
    if _OF_THE_NETWORK.search(error) and "unhandled cuda error" not in error:
        return NETWORK_FAILED
    return DEVICE_FAILED if _OF_A_DEVICE.search(error) else ""


def _last_error(log: str) -> str:
    """The message of the error in ``log``, with asserts of kernels before it; empty if there is none."""
    lines = tracebacks.lines_of(log)
    start = tracebacks.start_of_error(lines)
    if start < 0:
        return ""
    found = tracebacks.end_of_error(lines, start)
    asserts = [line for line in lines[:start] if "Assertion" in line and ".cu:" in line]
    return "\n".join(asserts + lines[found : found + 8])
