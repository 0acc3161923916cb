"""A rank's machine (``elastic.group.core``): scenarios as transcripts, and what holds of all events.

A file of ``transcripts/`` has one event a line, of the rank of member ``a``. ``>`` shows an effect, ``=`` the state
that it leads to; ``?`` reads a value. To add a scenario, write its events, run the test and read what it
prints: the transcript is what the machine has done.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from bench_harness.played_ranks import SECRET
from elastrain.api import messages as m
from elastrain.api.loops import LoopId
from elastrain.api.records import Generation, GenerationMember
from elastrain.api.settings import RankSettings
from elastrain.elastic.group.machine import events as e
from elastrain.elastic.group.machine.core import Core
from elastrain.elastic.group.machine.states import TRANSITIONS, Move, State

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


def welcome(member: str) -> m.Welcome:
    return m.Welcome(member=member, address="127.0.0.1", lease_ttl=5.0, settings=RankSettings())


def generation(number: int, *members: str) -> Generation:
    place = {"address": "127.0.0.1", "store_port": 1, "slots": 1}
    of = tuple(GenerationMember(id=name, worker=name, rank_offset=i, **place) for i, name in enumerate(members))
    return Generation(number=number, members=of, reason="Test", leader="", secret=SECRET if members else "")


class Transcript:
    """The machine of a rank, its events and effects as lines."""

    def __init__(self) -> None:
        self.core, self.now = Core(welcome("a"), 0), 0.0
        self.generations: dict[int, Generation] = {}

    def line(self, line: str) -> list[str]:
        """The lines that an event leads to, or what is read from the machine."""
        if line.startswith("?"):
            return [f"  : {self._read(*line.split()[1:])}"]
        before = self.core.state
        effects = [self._shown(effect) for effect in self.core.handle(self._event(line), self.now)]
        states = [] if self.core.state is before else [f"  = {self.core.state.name}"]
        return [*(f"  > {effect}" for effect in effects), *states]

    def _read(self, name: str, number: str = "") -> object:
        if name == "needs":
            return self.core.needs(self.generations[int(number)])
        return sorted(self.core.connected()) if name == "connected" else getattr(self.core, name)

    def _event(self, line: str) -> e.Event:
        words, _, rest = line.partition(": ")
        name, *arguments = words.rstrip(":").split()
        options = dict(a.split("=") for a in arguments if "=" in a)
        plain = [a for a in arguments if "=" not in a]
        number = next((int(a) for a in plain if a.isdigit()), 0)
        numbers: dict[str, Any] = {key: int(value) for key, value in options.items() if key != "loop"}
        if "loop" in options:
            numbers["loop"] = LoopId(*map(int, options["loop"].split("/")))
        flags = {a.replace("-", "_"): True for a in plain if not a.isdigit()}
        if name == "proposed":
            self.generations.setdefault(number, generation(number, *rest.split()))
        if name == "after":
            self.now += float(plain[0])
            return e.Tick()
        if name == "boundary":
            return e.Boundary(holds="holds" in plain, **numbers)
        messages = {
            "proposed": lambda: m.Proposed(generation=self.generations[number]),
            "welcome": lambda: welcome(plain[0]),
            "abort": lambda: m.Abort(generation=number, reason=rest),
            "located": lambda: m.Located(training=True, **numbers),
            "exit": lambda: m.Exit(reason=rest, **flags),
            "repeat": lambda: m.Repeat(why=rest),
        }
        events = {
            "agent-gone": lambda: e.AgentGone("the agent is gone"),
            "connected": lambda: e.Connected(self.generations[number]),
            "not-connected": lambda: e.NotConnected(self.generations[number], rest, own="own" in plain),
            "over": lambda: e.Over(number, rest),
            "failed-itself": lambda: e.FailedItself(number, rest),
            "ready": lambda: e.Ready(9000, **numbers),
            "locates": e.Locates,
            "agreed": lambda: e.Agreed(number or None),
            "entered": lambda: e.Entered(self.generations[number], complete="in-part" not in plain, **numbers),
            "stopped": lambda: e.Stopped(number, **numbers),
            "gave-up": lambda: e.GaveUp(number, error=rest, **numbers, **flags),
            "catches-up": e.CatchesUp,
            "withdraws": lambda: e.Withdraws(rest),
            "renewed": e.Renewed,
            "answered": e.Answered,
            "closed": e.Closed,
        }
        return (messages | events)[name]()

    @staticmethod
    def _shown(effect: e.Effect) -> str:
        match effect:
            case e.Send(message=message):
                said = message.model_dump(exclude_defaults=True, exclude={"type"})
                values = (f"{key}={shown(getattr(message, key))}" for key in said)
                return f"send {message.type} " + ", ".join(values)
            case e.CallOff(number=number, why=why) | e.Abort(number=number, why=why) | e.GiveUp(number=number, why=why):
                return f"{type(effect).__name__} {number}: {why}"
            case e.Connect(generation=g, rank=rank):
                return f"Connect {g.number} as rank {rank}"
            case e.Enter(generation=g, agreed=agreed) | e.StopFor(generation=g, agreed=agreed):
                return f"{type(effect).__name__} {g.number}" + (" as agreed" if agreed else "")
            case e.Close(number=number):
                return f"Close {number}"
            case e.GoOn(loop=loop):
                return f"GoOn to loop {shown(loop)}"
            case e.Fail(number=number, attempts=attempts):
                return f"Fail {number}, attempts={attempts}"
            case _:
                return type(effect).__name__


def shown(value: object) -> object:
    """``value`` as it stands in a transcript: of a loop its end, and ``/1`` for the second one with that end."""
    if not isinstance(value, LoopId):
        return value
    return f"{value.end}/{value.nth}" if value.nth else value.end


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_machine_acts_as_the_transcript_shows(path):
    transcript, shown = Transcript(), []
    for line in path.read_text().splitlines():
        if line.startswith("  "):
            continue
        if line == "---":
            transcript = Transcript()
        shown.append(line)
        if line and line != "---" and not line.startswith("#"):
            shown += transcript.line(line)
    print("\n".join(shown))
    assert "\n".join(shown) + "\n" == path.read_text()


def test_a_rank_s_number_is_that_of_its_member_and_its_own_there():
    assert Core(welcome("b"), 2).rank_in(generation(1, "a", "b")) == 3
    assert Core(welcome("c"), 2).rank_in(generation(1, "a", "b")) is None


def test_each_state_is_reached_and_left_by_the_moves_of_the_table():
    reached = {State.APART} | {to for moves in TRANSITIONS.values() for to in moves.values()}
    assert reached == set(State) == set(TRANSITIONS)
    assert {move for moves in TRANSITIONS.values() for move in moves} == set(Move)


@pytest.mark.parametrize("seed", range(20))
def test_an_instruction_follows_each_boundary_and_no_other_event_if_the_agent_sends_anything_at_any_time(seed):
    """A training thread that executes each instruction at once, beside an agent and a network without a plan."""
    rng, core, number, instructed = random.Random(seed), Core(welcome("a"), 0), 0, None
    members = 0
    core.handle(e.Ready(9000, 0), 0.0)
    for now in range(300):
        event: e.Event = e.Boundary(holds=True)
        match rng.choice(["propose", "connect", "fail", "over", "abort", "welcome", "boundary", "boundary"]):
            case "propose":
                number += 1
                event = m.Proposed(generation=generation(number, *rng.sample([core.welcome.member, "b", "c"], 2)))
            case "connect" if (newest := core.proposals.newest) is not None and core.rank_in(newest) is not None:
                event = e.Connected(newest)
            case "fail" if (newest := core.proposals.newest) is not None and core.rank_in(newest) is not None:
                event = e.NotConnected(newest, "x", own=False)
            case "over":
                event = e.Over(rng.randint(1, number + 1), "x")
            case "abort":
                event = m.Abort(generation=rng.randint(1, number + 1), reason="x")
            case "welcome" if rng.random() < 0.2:
                members += 1
                event = welcome(f"a{members}")
        asked = isinstance(event, e.Boundary) or core.boundary is not None
        effects = core.handle(event, float(now))
        told = [x for x in effects if isinstance(x, e.Instruction)]
        assert len(told) <= asked, f"{event}: {effects}"
        while told:
            (instructed,) = told
            effects = []
            for done in execute(instructed, core, rng):
                effects += core.handle(done, float(now))
            told = [x for x in effects if isinstance(x, e.Instruction)]
    assert instructed is not None


def execute(instruction: e.Instruction, core: Core, rng: random.Random) -> list[e.Event]:
    """What a training thread does, up to its next boundary."""
    match instruction:
        case e.Enter(generation=g) if rng.random() < 0.7:
            return [e.Entered(g, 0, complete=rng.random() < 0.7), e.Boundary(holds=True)]
        case e.Enter(generation=g):
            return [e.GaveUp(g.number, 0, "x"), e.Boundary(holds=True)]
        case e.GiveUp(number=number):
            return [e.GaveUp(number, 0, "x"), e.Boundary(holds=True)]
        case e.StopFor(generation=g):
            return [e.Stopped(g.number, 0), e.Boundary(holds=True)]
        case e.StandBack() if core.state is State.REPLACED:
            return [e.Renewed(), e.Ready(9000, 0), e.Boundary(holds=True)]
        case e.Train() if core.connected() and rng.random() < 0.5:
            return [e.Agreed(max(core.connected()))]
        case e.Train():
            return [e.Agreed(None)]
        case _:
            return []
