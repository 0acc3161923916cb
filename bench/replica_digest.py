"""What it costs to compare replicas: the digest of parameters, buffers and Adam's moments, beside a plain step.

    .venv/bin/python bench/replica_digest.py

One process with one thread. Rounds of a step and a digest take turns; the medians are printed, and the share of the
steps' time that a digest after every 100 steps takes. ``on a device``: the same digest by the operations that run on a
GPU, here on the CPU, for the traffic that they cause.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from elastrain.api.settings import DivergenceSpec
from elastrain.elastic.replicas.entries import Entries, combined, of_device_tensor

EVERY = DivergenceSpec().every_steps
SHAPES = {"10 M": (256, 12, 1024), "100 M": (768, 14, 3072)}
"""Width, layers and width of the feed-forward part of a transformer."""
SEQUENCE, BATCH = 32, 4
"""Few tokens: a step that computes little has the greatest share."""


def built(width: int, layers: int, hidden: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A transformer and its Adam."""
    layer = nn.TransformerEncoderLayer(width, 4, hidden, batch_first=True, dropout=0.0)
    net = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return net, torch.optim.Adam(net.parameters(), lr=1e-4)


def seconds(call: Callable[[], object]) -> float:
    """Of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def measure(name: str, rounds: int) -> None:
    """Print one row."""
    net, optimizer = built(*SHAPES[name])
    x = torch.randn(BATCH, SEQUENCE, SHAPES[name][0])

    def step() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    step()
    entries = Entries({"model": net, "optimizer": optimizer})
    tensors = [p.detach() for p in net.parameters()]
    tensors += [v for state in optimizer.state.values() for v in state.values()]
    steps, digests, on_device = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        steps.append(seconds(step))
        digests.append(seconds(lambda: combined(entries.digests())))
        on_device.append(seconds(lambda: [of_device_tensor(t) for t in tensors]))
    one, digest, device = map(statistics.median, (steps, digests, on_device))
    parameters = sum(p.numel() for p in net.parameters()) / 1e6
    mib = sum(t.nbytes for t in tensors) / 2**20
    print(
        f"| {parameters:.1f} M | {len(entries.digests())} | {mib:.0f} | {1000 * one:.0f} | {1000 * digest:.1f} "
        f"| {mib / 1024 / digest:.1f} | {100 * digest / EVERY / one:.3f} % | {1000 * device:.1f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| parameters | entries | MiB | step, ms | digest, ms | GiB/s | of the steps' time | on a device, ms |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in SHAPES:
        measure(name, arguments.rounds)


if __name__ == "__main__":
    main()
