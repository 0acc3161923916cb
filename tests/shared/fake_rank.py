"""A rank without torch: speaks the agent's protocol, "trains" by sleeping, and writes a trail of received messages.

Run by an agent as a training script. ``FAKE_RANK_TRAIL`` names a directory; the trail is one JSON line per event in
``<member>.<local rank>``. ``FAKE_RANK_STEPS``: number of steps of the loop (absent: it never ends). ``FAKE_RANK_STEP``:
seconds of a step. ``FAKE_RANK_FAIL=raise`` raises after the first adopted generation.
"""

import json
import os
import queue
import socket
import sys
import threading
import time
from pathlib import Path

LOCAL_RANK = int(os.environ["LOCAL_RANK"])
STEPS = int(os.environ.get("FAKE_RANK_STEPS", "1000000000"))
STEP_SECONDS = float(os.environ.get("FAKE_RANK_STEP", "0.02"))

link = socket.socket(socket.AF_UNIX)
link.connect(os.environ["ELASTRAIN_AGENT_SOCKET"])
lines = link.makefile("rb")


def say(type_, **fields):
    link.sendall(json.dumps({"type": type_, **fields}).encode() + b"\n")


say("hello", local_rank=LOCAL_RANK, pid=os.getpid())
me = json.loads(lines.readline())["member"]
trail = (Path(os.environ["FAKE_RANK_TRAIL"]) / f"{me}.{LOCAL_RANK}").open("a", buffering=1)


def note(what, **fields):
    trail.write(json.dumps({"what": what, "pid": os.getpid(), **fields}) + "\n")


inbox = queue.SimpleQueue()


def read():
    for line in lines:
        inbox.put(json.loads(line))
    os._exit(1)  # the agent is gone


threading.Thread(target=read, daemon=True).start()
note("welcome", member=me)
say("ready", store_port=29000 + LOCAL_RANK, step=0)

generation, rank, world, step, broken = 0, None, 0, 0, False
while step < STEPS:
    try:
        message = inbox.get(timeout=STEP_SECONDS)
    except queue.Empty:
        message = None
    if message is None:
        if rank is not None and not broken:
            step += 1
            if rank == 0:
                progress = {"generation": generation, "world_size": world, "members": world, "step": step}
                say("report", progress=progress)
    elif message["type"] == "proposed":
        g = message["generation"]
        mine = [m for m in g["members"] if m["id"] == me]
        generation, broken = g["number"], False
        rank = mine[0]["rank_offset"] + LOCAL_RANK if mine else None
        world = sum(m["slots"] for m in g["members"])
        note("adopted", generation=generation, rank=rank, world=world, step=step)
        say("adopted", generation=generation, step=step)
        if os.environ.get("FAKE_RANK_FAIL") == "raise" and rank is not None:
            raise ValueError("the batch is empty")
    elif message["type"] == "abort":
        note("abort", generation=message["generation"], reason=message["reason"])
        if message["generation"] == generation:
            broken = True
            say("broken", generation=generation, step=step, error="aborted")
    elif message["type"] == "exit":
        note("exit", reason=message["reason"])
        say("left", step=step)
        sys.exit(0)
say("finished", step=step)
note("finished", step=step)
print("done after", step, "steps", time.strftime("%Y"))
