"""An agent's handling of its ranks only, controlled by lines on standard input.

Its one argument is JSON: ``command``, ``variables`` (added to the environment), ``nproc``, ``preload`` (modules that
the zygote imports), and the bounds ``warm_seconds`` and ``fork_seconds``. ``start``: start all ranks, and answer when
they run. ``reap``: answer when all have ended. ``start and kill``: start, and send SIGTERM at once. Answers are JSON
lines; the log is on standard error.
"""

import json
import os
import queue
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from elastrain.agent.process import forker, zygote
from elastrain.agent.process.forker import Zygote, launch
from elastrain.agent.process.supervisor import Supervisor, become_reaper

asked = json.loads(sys.argv[1])
zygote.PRELOAD = tuple(asked["preload"])
forker.WARM_SECONDS, forker.FORK_SECONDS = asked["warm_seconds"], asked["fork_seconds"]
environment = {**os.environ, **asked["variables"]}
become_reaper()
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # the ranks' output goes to the log
made = launch(asked["command"], environment)
changes: queue.SimpleQueue[None] = queue.SimpleQueue()
signal.signal(signal.SIGCHLD, lambda *_: changes.put(None))
ranks = Supervisor(asked["command"], environment, asked["nproc"], made, lambda: changes.put(None))
ended = []


def until(condition):
    while not condition():
        changes.get(timeout=60)
        ended.extend(asdict(r) for r in ranks.reap())


def answer(**fields):
    answers.write(json.dumps(fields) + "\n")


answer(zygote=made.pid if isinstance(made, Zygote) else None)
for line in sys.stdin:
    match line.strip():
        case "start":
            ended.clear()
            ranks.start(Path("/nowhere"))
            until(lambda: ranks.pids or ended)
            answer(pids=list(ranks.pids.values()))
        case "start and kill":
            ended.clear()
            ranks.start(Path("/nowhere"))
            ranks.kill(signal.SIGTERM)
            answer(pids=list(ranks.pids.values()))
        case "reap":
            until(lambda: len(ended) == asked["nproc"])
            answer(ended=sorted(ended, key=lambda r: r["local_rank"]))
if isinstance(made, Zygote):
    made.close()
