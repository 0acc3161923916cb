"""bench/gpu.py where there is no GPU: it says so, and what to do instead."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[3] / "bench" / "gpu.py"


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")
def test_it_refuses_with_the_reason_and_code_2_if_torch_sees_no_gpu() -> None:
    ended = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=100)
    assert ended.returncode == 2
    assert "sees no GPU" in ended.stderr
    assert "bench/rescale.py" in ended.stderr
    assert not ended.stdout
