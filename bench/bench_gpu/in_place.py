"""A group of torch's ``nccl2`` whose members change in place, on one card, also after SIGKILL and SIGSTOP.

elastrain does not use such groups (docs/decisions/0193). This answers what that decision waits for. Two of the three
members see a loss, revoke, agree, and connect again; a fourth joins. The file is also the program of a member.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # a program of its own, started by path

import torch
import torch.distributed as dist

from bench_gpu import ranks
from bench_gpu.report import ENV_DRY, Figures, NotPossible
from bench_harness.played_ranks import Process, Starter
from elastrain.elastic.comm.transport import wait_for

c10d = dist.distributed_c10d
SECONDS = 100.0
"""Bound of the whole check."""
CONNECT_SECONDS, SUM_SECONDS = 30.0, 5.0
"""Bounds of a reconfigure, and of gloo's sums: only its timeout ends one whose peer is frozen."""
HIGHEST = 64
"""Above all numbers of members."""
SURVIVORS, KILLED, JOINER = (0, 1), 2, 3
KILL, STOP = "kill -9", "SIGSTOP"


def obstacle(names: Collection[str], *, dry: bool) -> str | None:
    """Why a torch whose module of groups has ``names`` cannot run the check. Pure. ``dry``: by gloo, not nccl2."""
    if "ReconfigureOptions" not in names:
        return f"torch {torch.__version__} changes no group in place: 2.14 is the first"
    if not dry and "ProcessGroupNCCL2" not in names:
        return "this build of torch has no nccl2"
    return None


def check(folder: Path, starter: Starter, *, dry: bool) -> Figures:
    """Run the members and disturb them. Raises :class:`NotPossible`, and ``AssertionError`` with their last words."""
    if (why := obstacle(dir(c10d), dry=dry)) is not None:
        raise NotPossible(why)
    folder.mkdir()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    logs = [folder / f"{number}.log" for number in range(JOINER + 1)]
    members: list[Process] = []
    try:
        for number, log in enumerate(logs):
            command = [sys.executable, __file__, str(number), str(store.port)]
            environment = {**os.environ, **ranks.environment(f"host{number}", dry=dry)}
            members.append(starter.start(command, environment, log.open("wb")))
        end = time.monotonic() + SECONDS

        def until(what: str, condition: Callable[[], bool]) -> None:
            while not condition():
                failed = any(members[n].poll() not in (None, 0) for n in SURVIVORS)
                assert not failed and time.monotonic() < end, f"{what}: {' | '.join(map(_tail, logs))}"
                time.sleep(0.01)

        for case, victim, how in ((KILL, KILLED, signal.SIGKILL), (STOP, JOINER, signal.SIGSTOP)):
            until(f"sums without a peer before {case}", partial(store.check, [f"{case}/sums/{n}" for n in SURVIVORS]))
            members[victim].send_signal(how)
            store.set(f"{case}/done", "")
        until("the survivors end", lambda: all(members[n].poll() == 0 for n in SURVIVORS))
    finally:
        for member in members:
            if member.poll() is None:
                member.kill()
            member.wait(10)
    figures: Figures = json.loads(store.get("figures"))
    return figures


class Member:
    """This process, in a group that connects nothing until it is told with whom."""

    def __init__(self, number: int, port: int, *, dry: bool) -> None:
        """Raises :class:`NotPossible` if there is no driver: the destructor of a nccl2 group would end the process."""
        if not dry and not torch.cuda.is_available():
            raise NotPossible("nccl2 needs a CUDA device and its driver")
        self.number, self.dry = number, dry
        self.device = torch.device("cpu") if dry else torch.device("cuda", 0)
        if not dry:
            torch.cuda.set_device(self.device)
        self.store = dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group(
            "gloo" if dry else "nccl2",
            store=dist.PrefixStore("group", self.store),
            rank=number,
            world_size=HIGHEST,
            timeout=timedelta(seconds=SUM_SECONDS if dry else SECONDS),
            enable_reconfigure=True,
        )
        self._ones = torch.ones(1 << 16, device=self.device)

    def change(self, number: int, *members: int) -> float:
        """Connect to ``members``, by their order, in the change ``number``, and add; the milliseconds to connect."""
        print(f"change {number}: {members}", flush=True)
        self.store.set(f"handle/{number}/{self.number}", dist.group.WORLD.get_reconfigure_handle())
        options = c10d.ReconfigureOptions()
        options.uuid, options.timeout = number, timedelta(seconds=CONNECT_SECONDS)
        options.handles = [self.store.get(f"handle/{number}/{m}").decode() for m in members]
        began = time.monotonic()
        dist.group.WORLD.reconfigure(options).wait()
        seconds = time.monotonic() - began
        assert (dist.get_rank(), dist.get_world_size()) == (members.index(self.number), len(members))
        value = self._ones.clone()
        dist.all_reduce(value)
        wait_for(self.device)
        assert value[-1].item() == len(members), f"a sum over {members} is wrong"
        return seconds * 1e3

    def lose(self, case: str) -> Figures:
        """Wait in a sum for a peer that never enters it, and revoke; the survivors then agree that theirs has ended."""
        print(case, flush=True)
        work = dist.all_reduce(self._ones.clone(), async_op=True)
        self.store.set(f"{case}/sums/{self.number}", "")
        self.store.get(f"{case}/done")
        free, began = self._free(), time.monotonic()
        dist.group.WORLD.abort()
        with contextlib.suppress(RuntimeError):
            work.wait()
        wait_for(self.device)
        figures: Figures = {f"{case}, revoke ms": (time.monotonic() - began) * 1e3}
        if not self.dry:
            figures[f"{case}, MiB freed by it"] = (self._free() - free) / 2**20
            figures[f"{case}, error"] = dist.get_backend_impl(dist.group.WORLD, self.device).get_error().name
        self.meet(f"{case}/revoked")
        return figures

    def mate(self) -> Figures:
        """The first survivor frees its communicator without agreeing, while the other's sum waits for it."""
        print("mate", flush=True)
        if self.number == SURVIVORS[0]:
            self.store.get("mate/sums")
            alone = self.change(5, self.number)
            self.store.set("mate/freed", "")
            return {"freed alone ms": alone}
        work = dist.all_reduce(self._ones.clone(), async_op=True)
        self.store.set("mate/sums", "")
        self.store.get("mate/freed")
        dist.group.WORLD.abort()
        with contextlib.suppress(RuntimeError):
            work.wait()
        wait_for(self.device)
        product = torch.eye(256, device=self.device) @ torch.ones(256, 256, device=self.device)
        assert product.sum().item() == 256**2, "the device computes wrongly after a mate has freed first"
        return {}

    def meet(self, where: str) -> None:
        self.store.set(f"{where}/{self.number}", "")
        for number in SURVIVORS:
            self.store.get(f"{where}/{number}")

    def _free(self) -> int:
        free: int = 0 if self.dry else torch.cuda.mem_get_info(self.device)[0]
        return free


def survive(member: Member) -> Figures:
    """A survivor's part."""
    figures: Figures = {"form ms": member.change(1, *SURVIVORS, KILLED)}
    figures |= member.lose(KILL)
    figures[f"{KILL}, in place ms"] = member.change(2, *SURVIVORS)
    figures["grow ms"] = member.change(3, *SURVIVORS, JOINER)
    figures |= member.lose(STOP)
    figures[f"{STOP}, in place ms"] = member.change(4, *SURVIVORS)
    figures |= member.mate()
    figures["again ms"] = member.change(6, *SURVIVORS)
    return figures


def main() -> None:
    number, port = int(sys.argv[1]), int(sys.argv[2])
    member = Member(number, port, dry=ENV_DRY in os.environ)
    if number in SURVIVORS:
        figures = survive(member)
        if number == SURVIVORS[0]:
            member.store.set("figures", json.dumps(figures))
        member.meet("end")
    else:
        member.change(1 if number == KILLED else 3, *SURVIVORS, number)
        member.store.get("never")  # until the signal
    os._exit(0)  # a destructor may wait for sums that nobody ends


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-300:]


if __name__ == "__main__":
    main()
