"""Runs a script of the zoo as a rank: in float64, and no further than the test allows.

``argv``: the job's folder, the script, its arguments. Before each backward the rank waits until ``allowed`` in the
folder names its step or a later one. ``PORTIONS``: joiners receive their state over several steps. ``DOUBLE``:
``Tensor.float`` gives float64. ``HOLD``: a path; the first process that saves a file writes its id there, and waits.
``SAMPLE``: seconds that a sample takes at least. ``BODIES``: a path; each backward writes there whose it is.
"""

import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from elastrain.elastic import torch_probes
from elastrain.elastic.job import Job
from elastrain.elastic.state import portions, sender, transfer

allowed, script = Path(sys.argv[1]) / "allowed", Path(sys.argv[2])
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
if os.environ.get("DOUBLE"):
    torch_probes.check(torch_probes.EVERY_JOB)  # torch itself needs float32 in one of them
    torch.Tensor.float = torch.Tensor.double  # Hugging Face's losses round logits to float32
if os.environ.get("PORTIONS"):
    portions.MIN_BYTES, transfer.SMALL_BYTES = 1, 200
    portions.SAMPLES = 8  # so that the samples of a tensor are small
    sender.STEP_SHARE = 0.0  # one portion from each sender in each step

if hold := os.environ.get("HOLD"):  # the first save of a file waits to be killed
    save = torch.save

    def held(*args: Any, **options: Any) -> None:
        if not Path(hold).exists():
            Path(hold).write_text(str(os.getpid()))
            signal.pause()
        save(*args, **options)

    torch.save = held

backward, sample = Job.backward, float(os.environ.get("SAMPLE", "0"))


def backward_if_allowed(job: Job, loss: torch.Tensor, **options: Any) -> Any:
    while job.step > int(allowed.read_text()):
        time.sleep(0.005)
    if body := job._loop.bodies.present:
        time.sleep(sample * body.samples)
        if path := os.environ.get("BODIES"):
            with Path(path).open("a") as file:
                file.write(f"{body.step} {body.micro_batch} {body.execution} {body.warm_up}\n")
    return backward(job, loss, **options)


Job.backward = backward_if_allowed
sys.argv = sys.argv[2:]
sys.path[0] = str(script.parent)
runpy.run_path(str(script), run_name="__main__")
