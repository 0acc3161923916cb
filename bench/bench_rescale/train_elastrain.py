"""The workload for elastrain. The runtime owns checkpoints, joiners' state and the order of the data."""

from __future__ import annotations

import elastrain
from bench_harness import workload
from bench_rescale.steplog import StepLog

EPOCHS = 1_000_000
"""More than a run lasts: the benchmark ends the processes."""


def main() -> None:
    log = StepLog()
    with elastrain.join() as job:
        net, optimizer = workload.build()
        model = job.wrap(net)
        job.track(optimizer=optimizer)
        loader = job.dataloader(workload.data(), global_batch_size=workload.GLOBAL_BATCH)
        for i, (inputs, labels) in enumerate(job.steps(loader, epochs=EPOCHS)):
            if i > 0:  # the first execution in a process is a warm-up and no step
                log.begin(job.step)
            optimizer.zero_grad()
            job.backward(workload.loss(model, inputs, labels))
            optimizer.step()
            if job.committed:
                log.commit(job.step + 1, world=job.world_size, rank=job.rank)


if __name__ == "__main__":
    main()
