#!/usr/bin/env python3
"""What elastrain does on a GPU, for a machine with one (or more).

    bench/gpu.py                 everything, about five minutes
    bench/gpu.py --only nccl     one part; parts: device, nccl, reading, staging, elastic, cards
    bench/gpu.py --json out.json

- nccl     init, first sum, abort, orderly end and init again, of a communicator of one rank; what that leaves behind
- reading  the one event that a step waits for, beside the tolist() that it replaces
- staging  state between the host and the device, piece by piece
- elastic  three ranks on one card, sums over gloo: grow, shrink, kill -9; are the replicas equal to the bit?
- cards    the same with a card for each rank and NCCL; left out with fewer than three cards

A part that fails is noted and the next one goes on. Exit codes: 0 all went well, 1 a part failed, 2 cannot be run here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
STEPS = 40
"""Between two events."""
MINIMUM_CARDS = 3


def refuse(message: str) -> NoReturn:
    print(f"bench/gpu.py: {message}", file=sys.stderr)
    sys.exit(2)


def imports() -> None:
    """Make the checkout importable, and say what is missing."""
    sys.path[:0] = [str(ROOT / "trainer"), str(ROOT / "bench")]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "trainer"), os.environ.get("PYTHONPATH", "")]).rstrip(":")
    try:
        import torch

        import elastrain.elastic  # noqa: F401
    except ImportError as e:
        refuse(f"{e}; install the project with 'pip install -e .[trainer]' and a CUDA build of torch")
    if not torch.cuda.is_available():
        built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        refuse(
            f"torch {torch.__version__} ({built}) sees no GPU, and this measures nothing else; the same runtime is "
            "measured on CPUs by bench/rescale.py and bench/steady_state.py"
        )


def about() -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "uuid": str(getattr(properties, "uuid", "")),
        "cards": torch.cuda.device_count(),
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else None,
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
    }


def elastic(rounds: int, width: int, own_cards: bool) -> dict[str, Any]:
    """Grow, shrink and lose ranks; the median over rounds of what the survivor saw."""
    measured: dict[str, dict[str, list[float]]] = {}
    notes: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            one_round(Path(folder) / str(number), width, own_cards, measured, notes)
    events = {
        event: {name: round(statistics.median(values), 4) for name, values in figures.items()}
        for event, figures in measured.items()
    }
    return {"rounds": rounds, "events": events, "sums_by": sorted(notes)}


def one_round(
    folder: Path, width: int, own_cards: bool, measured: dict[str, dict[str, list[float]]], notes: set[str]
) -> None:
    from gpu_harness.leader import Failed, World

    def environment(i: int) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": str(i if own_cards else 0)}

    with World(folder, environment, width) as world:

        def note(event: str, began: float, generation: int) -> None:
            world.wait(f"the record of {event}", lambda: generation in world.ranks["a"].rescales())
            record = world.ranks["a"].rescales()[generation]
            figures = measured.setdefault(event, {})
            seconds = {"stall": world.stall("a", began), "pause": record.pause_seconds, **record.phases}
            for name, value in seconds.items():
                figures.setdefault(name, []).append(value)

        def change(event: str, ranks: str) -> None:
            began = time.monotonic()
            generation = world.propose(*ranks)
            world.trained(ranks, STEPS)
            note(event, began, generation)

        world.start("a")
        world.propose("a")
        world.trained("a", STEPS)
        steps = world.ranks["a"].steps()
        step = statistics.median(y["at"] - x["at"] for x, y in pairwise(steps[5:]))
        measured.setdefault("undisturbed step", {}).setdefault("one rank", []).append(step)
        world.start("b")
        change("grow 1 to 2", "ab")
        world.start("c")
        change("grow 2 to 3", "abc")
        change("shrink 3 to 2", "ab")
        from elastrain.api.messages import Exit

        world.ranks["c"].send(Exit(reason="drained"))
        world.wait("the leaver ends", lambda: world.ranks["c"].process.poll() == 0)
        world.start("d")
        change("grow 2 to 3 again", "abd")
        lost, began = world.number, time.monotonic()
        world.ranks["d"].process.kill()
        for survivor in "ab":
            world.wait(f"{survivor} notices", lambda r=survivor: world.ranks[r].has("broken", generation=lost))
        measured.setdefault("kill -9 of a rank", {}).setdefault("noticed", []).append(time.monotonic() - began)
        generation = world.propose("a", "b")
        world.trained("ab", STEPS)
        note("kill -9 of a rank", began, generation)
        if differ := world.replicas_differ():
            raise Failed(differ)
        for line in (folder / "a.log").read_text(errors="replace").splitlines():
            if "sums_by=" in line:
                notes.add(line.partition("sums_by=")[2].split()[0])


def table(results: dict[str, Any]) -> None:
    for part, result in results.items():
        print(f"\n{part}")
        for line in rows(result):
            print(f"  {line}")


def rows(value: Any, path: str = "") -> list[str]:
    if not isinstance(value, dict):
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        return [f"{path:48} {text}"]
    return [row for key, inner in value.items() for row in rows(inner, f"{path} / {key}" if path else str(key))]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts_there = ("device", "nccl", "reading", "staging", "elastic", "cards")
    options.add_argument("--only", choices=parts_there, action="append", help="may be given several times")
    options.add_argument("--rounds", type=int, default=3, help="of elastic and cards (default 3)")
    options.add_argument("--cycles", type=int, default=20, help="of nccl (default 20)")
    options.add_argument("--width", type=int, default=2048, help="of the MLP that elastic trains (default 2048)")
    options.add_argument("--json", type=Path, help="write the figures there")
    chosen = options.parse_args()
    imports()
    import torch

    from gpu_harness import device as single

    card = torch.device("cuda", 0)
    torch.cuda.set_device(card)
    parts: dict[str, Callable[[], Any]] = {
        "device": about,
        "nccl": lambda: {
            **single.nccl_cycles(card, chosen.cycles),
            "a_sum_after_an_abort": single.a_sum_after_an_abort(card),
        },
        "reading": lambda: single.reading(card),
        "staging": lambda: single.staging(card),
        "elastic": lambda: elastic(chosen.rounds, chosen.width, own_cards=False),
    }
    if torch.cuda.device_count() >= MINIMUM_CARDS:
        parts["cards"] = lambda: elastic(chosen.rounds, chosen.width, own_cards=True)
    results: dict[str, Any] = {}
    for name, measure in parts.items():
        if name != "device" and chosen.only and name not in chosen.only:
            continue
        print(f"{name} …", file=sys.stderr)
        try:
            results[name] = measure()
        except Exception as e:
            traceback.print_exc()
            results[name] = {"failed": f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"}
        if chosen.json:  # after each part: what was measured is kept whatever comes
            chosen.json.write_text(json.dumps(results, indent=1) + "\n")
    table(results)
    sys.exit(any("failed" in result for result in results.values()))


if __name__ == "__main__":
    main()
