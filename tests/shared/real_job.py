"""A whole job on this machine: a real etcd, real agents, ranks with torch. The test plays the operator.

What is observed is what operators see: records in etcd, the agents' logs, what ranks print, the audit log, exit codes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from conditions import eventually
from elastrain.agent.logs import ENV_AGENT_LOG
from elastrain.api import names
from elastrain.api.keys import JobKeys
from elastrain.api.records import Generation, Member, Progress, Target, Termination
from elastrain.etcd import EtcdClient, EtcdConfig
from elastrain_audit.judge import Verdict, verify
from elastrain_cli.etcd_server import EtcdServer
from warm import Warm

TTL = 2
PATIENCE = 90.0
"""Seconds that a test waits for a condition before it fails, saying which."""


class Worker:
    """One agent with its ranks."""

    def __init__(self, warm: Warm, name: str, folder: Path, command: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self.log_path = folder / f"{name}.agent.log"
        self.out_path = folder / f"{name}.out"
        self.termination_path = folder / f"{name}.termination"
        own = {
            names.ENV_WORKER: name,
            names.ENV_TERMINATION_LOG: str(self.termination_path),
            ENV_AGENT_LOG: str(self.log_path),
        }
        agent = [sys.executable, "-m", "elastrain", "agent", "--", *command]
        self.process = warm.start(agent, {**os.environ, **environment, **own}, self.out_path.open("ab"))

    def log(self, event: str) -> list[dict]:
        """Lines of the agent's log about ``event``."""
        lines = self.log_path.read_text().splitlines() if self.log_path.exists() else []
        entries = [json.loads(line) for line in lines if line.endswith("}")]
        return [e for e in entries if e["event"] == event]

    def out(self) -> str:
        """What agent and ranks printed."""
        return self.out_path.read_text(errors="replace")

    @property
    def rank_pid(self) -> int:
        """Of its rank's newest process."""
        return self.log("ranks started")[-1]["pids"]["0"]

    @property
    def adopted(self) -> int:
        """Newest generation that its rank trains in, or has seen without being in it; 0: none."""
        return self.log("member")[-1]["generation"] if self.log("member") else 0

    def kill_rank(self) -> None:
        os.kill(self.rank_pid, signal.SIGKILL)

    def signal(self, signum: int) -> None:
        """To the agent and all that it started."""
        for process in [psutil.Process(self.process.pid), *self.children()]:
            process.send_signal(signum)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def ends(self) -> Termination:
        self.process.wait(PATIENCE)
        return Termination.decode(self.termination_path.read_bytes())

    def close(self) -> None:
        if self.process.poll() is None:
            children = self.children()
            self.process.kill()
            for child in children:
                if child.is_running():  # psutil compares start times: a pid that was given anew is another process
                    child.kill()
        self.process.wait(10)


class Job:
    """Its workers, its records, and the test as its operator."""

    def __init__(self, warm: Warm, folder: Path, etcd: EtcdServer, keys: JobKeys) -> None:
        self.warm, self.folder, self.etcd, self.keys = warm, folder, etcd, keys
        self.audit = folder / "audit"
        self.workers: dict[str, Worker] = {}
        self.client = EtcdClient(EtcdConfig.of(etcd.endpoint))

    def want(self, desired: int, **fields: object) -> None:
        self.client.put(self.keys.target, Target(**{"min": 1, "max": 8, "desired": desired, **fields}).encode())

    def start(self, *workers: str, command: Sequence[str], endpoint: str = "", **environment: str) -> None:
        """Start agents, each with one rank that runs ``command``."""
        for name in workers:
            self.workers[name] = Worker(
                self.warm,
                name,
                self.folder,
                [*command],
                {
                    names.ENV_ETCD_ENDPOINTS: endpoint or self.etcd.endpoint,
                    names.ENV_NAMESPACE: self.keys.namespace,
                    names.ENV_JOB: self.keys.job,
                    names.ENV_JOB_UID: self.keys.uid,
                    names.ENV_ADDRESS: "127.0.0.1",
                    names.ENV_LEASE_TTL: str(TTL),
                    names.ENV_AUDIT_DIR: str(self.audit),
                    "OMP_NUM_THREADS": "1",
                    **environment,
                },
            )

    def __getitem__(self, worker: str) -> Worker:
        return self.workers[worker]

    # -- records -------------------------------------------------------------------------------------------------------
    def members(self) -> dict[str, Member]:
        """By worker; a younger incarnation hides an older one."""
        kvs = sorted(self.client.get_prefix(self.keys.members)[0], key=lambda kv: kv.create_revision)
        return {m.worker: m for m in (Member.decode(kv.value) for kv in kvs)}

    def generation(self) -> Generation | None:
        kv = self.client.get(self.keys.generation)
        return None if kv is None else Generation.decode(kv.value)

    def progress(self) -> Progress | None:
        kv = self.client.get(self.keys.progress)
        return None if kv is None else Progress.decode(kv.value)

    # -- what a test waits for -----------------------------------------------------------------------------------------
    def wait(self, what: str, condition: Callable[[], object], pause: float | None = None) -> None:
        """Return when ``condition`` holds; fail with ``what`` and the logs if it does not in time."""
        eventually(condition, PATIENCE, lambda: f"{what}\n{self.story()}", pause)

    def together(self, *workers: str, after: int = 0) -> int:
        """Wait until exactly these train in one generation numbered above ``after``; its number."""

        def condition() -> bool:
            g = self.generation()
            return g is not None and g.number > after and self.entered(*workers)

        self.wait(f"{workers} to train together", condition)
        g = self.generation()
        assert g is not None
        self.trained(g.number)
        return g.number

    def entered(self, *workers: str) -> bool:
        """Whether the newest generation is of exactly these, and they have entered it: the agent of rank 0 says so."""
        g, members = self.generation(), self.members()
        if g is None or {m.worker for m in g.members} != set(workers) or not workers:
            return False
        first = members.get(g.members[0].worker)
        return first is not None and first.generation == g.number

    def commits(self) -> list[dict]:
        """Every commit line of the audit log, of all ranks."""
        lines = [line for f in self.audit.glob("*.jsonl") for line in f.read_text().splitlines() if line.endswith("}")]
        return [x for x in map(json.loads, lines) if x["kind"] == "commit"]

    def trained(self, generation: int, steps: int = 3) -> None:
        """Wait until steps were committed in this generation or a later one."""
        self.wait(
            f"{steps} steps in generation {generation}",
            lambda: len({x["step"] for x in self.commits() if x["generation"] >= generation}) >= steps,
        )

    def steps(self, more: int) -> None:
        """Wait until the job has committed so many more steps; asks nobody but the audit log."""
        goal = self.last_step() + more
        self.wait(f"step {goal}", lambda: self.last_step() >= goal)

    def last_step(self) -> int:
        return max((x["step"] for x in self.commits()), default=-1)

    def verdict(self) -> Verdict:
        """The audit so far; fails the test if a sample or a committed step was lost or repeated."""
        verdict = verify(self.audit)
        assert verdict.ok, verdict.problems
        assert verdict.redone == 0, "a committed step was done again"
        return verdict

    def story(self) -> str:
        """The end of every log, for a failing test."""
        tails = []
        for name, worker in self.workers.items():
            for path in (worker.log_path, worker.out_path):
                text = path.read_text(errors="replace") if path.exists() else ""
                tails.append(f"--- {name} {path.name}\n" + "\n".join(text.splitlines()[-15:]))
        return "\n".join(tails)

    def close(self) -> None:
        for worker in self.workers.values():
            worker.close()
        self.client.close()
