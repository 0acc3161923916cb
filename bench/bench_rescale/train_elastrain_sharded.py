"""The workload for elastrain, sharded by FSDP2. Each node is one place in the step log, whatever its number of ranks:
its first rank writes."""

from __future__ import annotations

import os

import elastrain
from bench_harness import workload
from bench_rescale.steplog import StepLog
from bench_rescale.train_elastrain import EPOCHS


def main() -> None:
    log = StepLog() if os.environ["LOCAL_RANK"] == "0" else None
    nproc = int(os.environ["LOCAL_WORLD_SIZE"])
    with elastrain.join() as job:
        net, optimizer = workload.build_sharded(job.mesh)
        model = job.wrap(net, optimizer=optimizer)
        loader = job.dataloader(workload.data(), global_batch_size=workload.GLOBAL_BATCH)
        for i, (inputs, labels) in enumerate(job.steps(loader, epochs=EPOCHS)):
            if i > 0 and log is not None:  # the first execution in a process is a warm-up and no step
                log.begin(job.step)
            optimizer.zero_grad()
            job.backward(workload.loss(model, inputs, labels))
            optimizer.step()
            if job.committed and log is not None:
                log.commit(job.step + 1, world=job.world_size // nproc, rank=job.rank // nproc)


if __name__ == "__main__":
    main()
