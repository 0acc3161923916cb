"""Runs an example for a test. ``argv``: the example, a folder, steps, seconds of a body.

It does not rest any more once the folder has ``run-free``. Local rank 1 changes a parameter that rank 0 holds too once
it has ``spoil``.
"""

import importlib.util
import os
import sys
import time
from pathlib import Path

import torch

example, folder, steps, delay = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]


def rest(seconds: float) -> None:
    if not (folder / "run-free").exists():
        time.sleep(seconds)


def spoil_when_asked() -> None:
    step = torch.optim.AdamW.step

    def spoiled(optimizer: torch.optim.AdamW, closure: None = None) -> None:
        step(optimizer, closure)
        if (folder / "spoil").exists() and os.environ["LOCAL_RANK"] == "1":
            optimizer.param_groups[0]["params"][0].data.to_local().add_(1e-9)

    torch.optim.AdamW.step = spoiled


def main() -> None:
    spoil_when_asked()
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("example", example)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.rest = rest
    out = folder / "out"
    out.mkdir(exist_ok=True)
    sys.argv[1:] = ["--steps", steps, "--step-seconds", delay, "--dtype", "float64", "--out", str(out)]
    module.main()


if __name__ == "__main__":
    main()
