"""A least-squares fit by any number of MPI processes. It does not depend on elastrain: mpirun starts it.

Process 0 writes the model and the step to --out, and all processes start from them.
"""

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--step-seconds", type=float, default=0.0)
    parser.add_argument("--out", type=Path, default=Path("model.json"), help="on a volume that all workers share")
    options = parser.parse_args()
    world = MPI.COMM_WORLD
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(1200, 8))
    wanted = inputs @ np.arange(8.0)
    mine = slice(world.rank, None, world.size)

    saved = json.loads(options.out.read_text()) if world.rank == 0 and options.out.exists() else None
    saved = world.bcast(saved, root=0) or {"step": 0, "weights": [0.0] * 8}
    weights, first = np.array(saved["weights"]), saved["step"]
    for step in range(first, options.steps):
        gradient = inputs[mine].T @ (inputs[mine] @ weights - wanted[mine])
        weights -= 1e-1 * world.allreduce(gradient) / len(inputs)
        if world.rank == 0 and (step + 1) % 10 == 0:
            print(
                f"step {step + 1} by {world.size} processes: {np.abs(weights - np.arange(8)).max():.2e} off", flush=True
            )
            options.out.parent.mkdir(parents=True, exist_ok=True)
            partial = options.out.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps({"step": step + 1, "weights": weights.tolist()}))
            partial.rename(options.out)
        time.sleep(options.step_seconds)


if __name__ == "__main__":
    main()
