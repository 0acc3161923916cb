"""The checks, each as a function of a :class:`Site`; they raise ``AssertionError`` or :class:`NotPossible`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from bench_gpu import in_place, pair, ranks
from bench_gpu.report import Figures, Line, NotPossible
from bench_harness.played_ranks import Process, Starter, World
from elastrain.elastic.comm.transport import page_locked
from elastrain.elastic.state import transfer
from elastrain.elastic.state.transfer import Stage

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAIR_SECONDS, TOKENS_SECONDS, EXAMPLE_SECONDS = 150.0, 180.0, 90.0


@dataclass(frozen=True)
class Site:
    """Where checks run."""

    folder: Path
    starter: Starter
    dry: bool


def three_ranks(site: Site) -> Iterator[Line]:
    """Grow, kill -9, SIGSTOP, shrink, equal parameters."""
    yield line("three ranks on the card", lambda: ranks.three(site.folder / "ranks", site.starter, dry=site.dry))


def communicators(site: Site) -> Iterator[Line]:
    """What :mod:`bench_gpu.pair` finds."""
    out, names = site.folder / "pair.jsonl", list(pair.TASKS)
    began = time.monotonic()

    def run() -> Figures:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        logs = [(site.folder / f"pair-{rank}.log") for rank in (0, 1)]
        command = [sys.executable, str(HERE / "pair.py")]
        processes = [
            site.starter.start(
                [*command, str(rank), str(port), str(out)],
                {**os.environ, **ranks.environment(f"host{rank}", dry=site.dry)},
                log.open("wb"),
            )
            for rank, log in enumerate(logs)
        ]
        codes = _ends(processes, PAIR_SECONDS)
        assert codes == [0, 0], f"the two ranks end with {codes}: {_tail(logs)}"
        return {}

    ran = line("two ranks", run)
    done = [json.loads(text) for text in out.read_text().splitlines()] if out.exists() else []
    for name in names:
        said = next((d for d in done if d["task"] == name), None)
        title = {"abort": "abort of a kernel without its peer", "cycles": "form and abort, again and again"}.get(
            name, "form beside a full allocator"
        )
        if said is None:
            yield ran.model_copy(update={"name": title, "outcome": "fail" if ran.outcome == "pass" else ran.outcome})
        elif "not possible" in said:
            yield Line(name=title, outcome="not possible here", seconds=0.0, why=said["not possible"])
        else:
            seconds = time.monotonic() - began
            yield Line(name=title, outcome="pass", seconds=seconds, figures=said["figures"])


def groups_in_place(site: Site) -> Iterator[Line]:
    """What torch's own elastic groups do: :mod:`bench_gpu.in_place`."""
    yield line(
        "a group of nccl2, changed in place",
        lambda: in_place.check(site.folder / "in-place", site.starter, dry=site.dry),
    )


def tokens(site: Site) -> Iterator[Line]:
    """Tokens per second beside plain DDP and FSDP2."""

    def run() -> Figures:
        world = World(site.folder / "tokens", site.starter)
        try:
            world.start("a", script=HERE / "train_tokens.py", **ranks.environment("a", dry=site.dry))  # type: ignore[arg-type]
            world.ready("a")
            world.propose("a")
            code = _ends([world.ranks["a"].process], TOKENS_SECONDS)
            assert code == [0], f"it ends with {code}: {_tail([world.ranks['a'].log])}"
            rates = json.loads((world.folder / "tokens.json").read_text())
        finally:
            for rank in world.ranks.values():
                rank.stop()
        return {f"{name} tokens/s": float(rate) for name, rate in rates.items()}

    yield line("a model of GPT-2's size", run)


def staging(site: Site) -> Iterator[Line]:
    """State through page-locked memory, beside a busy stream."""

    def run() -> Figures:
        if site.dry:
            raise NotPossible("the CPU's memory is not staged")
        device = torch.device("cuda", 0)
        there = torch.empty(transfer.PIECE_BYTES * 64, dtype=torch.uint8, device=device)
        stage, matrix = Stage(transfer.PIECE_BYTES), torch.randn(4096, 4096, device=device)
        page_locked(transfer.PIECE_BYTES, device)
        figures: Figures = {}
        for busy in (False, True):
            for way in ("to the host", "to the device"):
                for _ in range(200 if busy else 0):
                    matrix @ matrix
                with torch.cuda.stream(torch.cuda.Stream(device)):
                    began = time.perf_counter()
                    for piece in there.split(transfer.PIECE_BYTES):
                        if way == "to the host":
                            stage.to_host(piece)
                        else:
                            stage.finish(stage.begin(piece), piece)
                    rate = there.numel() / (time.perf_counter() - began) / 1e9
                figures[f"{way}{' beside a busy stream' if busy else ''} GB/s"] = rate
                torch.cuda.synchronize(device)
        return figures

    yield line("state through page-locked memory", run)


def sharded(site: Site) -> Iterator[Line]:
    """The example of FSDP2, two ranks on the card."""

    def run() -> Figures:
        if site.dry:
            raise NotPossible("without a GPU it is a nightly test of its own: tests/training/local -k sharded")
        from elastrain_cli.etcd_server import EtcdNotFound, find_etcd

        try:
            find_etcd()
        except EtcdNotFound as e:
            raise NotPossible(str(e)) from None
        began = time.monotonic()
        command = [
            sys.executable,
            "-m",
            "elastrain_cli.main",
            "run",
            str(ROOT / "examples/10-fsdp/job.yaml"),
            "--plain",
        ]
        command += ["--set", "replicas=1", "--env", "STEPS=50", "--state-dir", str(site.folder / "example")]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=EXAMPLE_SECONDS, check=False)
        assert ran.returncode == 0, (ran.stdout + ran.stderr)[-400:]
        return {"example s": time.monotonic() - began}

    yield line("example 10-fsdp", run)


CHECKS: dict[str, Callable[[Site], Iterator[Line]]] = {
    "ranks": three_ranks,
    "communicators": communicators,
    "in-place": groups_in_place,
    "tokens": tokens,
    "staging": staging,
    "sharded": sharded,
}


def line(name: str, check: Callable[[], Figures]) -> Line:
    """The outcome of a check; anything that it raises is a failure of the check, not of the run."""
    began = time.monotonic()
    try:
        return Line(name=name, outcome="pass", figures=check(), seconds=time.monotonic() - began)
    except NotPossible as e:
        return Line(name=name, outcome="not possible here", seconds=time.monotonic() - began, why=str(e))
    except Exception as e:  # a check may fail in any way on hardware that nobody has tried
        why = f"{type(e).__name__}: {e}"
        return Line(name=name, outcome="fail", seconds=time.monotonic() - began, why=why[:1000])


def _ends(processes: list[Process], seconds: float) -> list[int | None]:
    """The exit codes of all, killing those that run after ``seconds``; None: killed."""
    deadline = time.monotonic() + seconds
    while any(p.poll() is None for p in processes) and time.monotonic() < deadline:
        if any(p.poll() not in (None, 0) for p in processes):
            deadline = min(deadline, time.monotonic() + 5)  # the others may still say what they have seen
        time.sleep(0.05)
    codes = [p.poll() for p in processes]
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait(10)
    return codes


def _tail(logs: list[Path]) -> str:
    return " | ".join(log.read_text(errors="replace")[-400:] for log in logs)
