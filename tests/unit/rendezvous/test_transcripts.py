"""Protocol scenarios as commented transcripts (transcripts/*.txt): events, and the leader's decisions.

A line ``> command`` is an event; the line after it is the decision. Run with ``UPDATE_TRANSCRIPTS=1`` to rewrite the
decisions, and review the difference before you commit it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastrain.api.records import Phase, Target
from elastrain.rendezvous.decide import Propose, Wait

FILES = sorted(Path(__file__).with_name("transcripts").glob("*.txt"))


def happen(job, command: str) -> None:
    verb, *words = command.split()
    match verb:
        case "target":
            least, most, desired, *leaving = words
            job.target = Target(min=int(least), max=int(most), desired=int(desired), leaving=tuple(leaving))
        case "join":
            job.join(*words)
        case "warm":
            job.join(*words, ready=False)
        case "leave":
            for worker in words:
                job.set(worker, phase=Phase.LEAVING)
        case "finish":
            job.set(*words, phase=Phase.FINISHED)
        case "ready" | "die" | "fail":
            getattr(job, verb)(*words)
        case "adopt":
            job.adopt()
            job.step += 1
        case "pass":
            job.pass_time(float(words[0]))
        case _:
            raise AssertionError(f"no such command: {command}")


def decision(job) -> str:
    action = job.run()
    if isinstance(action, Propose):
        members = " ".join(f"{m.worker}@{m.rank_offset}" for m in action.generation.members) or "nobody"
        return f"propose {action.generation.number} {action.generation.reason}: {members}"
    if isinstance(action, Wait):
        return f"wait {action.until - job.now:g} s for {action.what_for}"
    return f"nothing: {action.reason}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_leaders_decisions_match_the_transcript(path, make_job):
    job = make_job()
    played: list[str] = []
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        if line.startswith("> "):
            happen(job, line.removeprefix("> "))
            played += [line, decision(job)]
        elif number == 0 or not lines[number - 1].startswith("> "):
            played.append(line)
    text = "\n".join(played) + "\n"
    if os.environ.get("UPDATE_TRANSCRIPTS"):
        path.write_text(text)
    assert text == path.read_text()
