"""The rank of ``bench/numerics.py``: trains; rank 0 writes when each step was committed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import elastrain
from bench_harness import workload
from bench_harness.names import ENV_NUMERICS


def main() -> None:
    options = json.loads(os.environ[ENV_NUMERICS])
    with elastrain.join(numerics=options["numerics"]) as job:
        net, optimizer = workload.build()
        model = job.wrap(net)
        job.track(optimizer=optimizer)
        loader = job.dataloader(workload.data(), global_batch_size=workload.GLOBAL_BATCH, **options["loader"])
        committed: list[float] = []
        job.on_commit(lambda: committed.append(time.monotonic()))
        for inputs, labels in job.steps(loader, steps=options["steps"]):
            optimizer.zero_grad()
            job.backward(workload.loss(model, inputs, labels))
            optimizer.step()
        if job.rank == 0:
            Path(options["times"]).write_text(json.dumps(committed))


if __name__ == "__main__":
    main()
