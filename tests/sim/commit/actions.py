"""What can happen next in a world: the steps of ranks, faults, and changes of generation."""

from __future__ import annotations

from collections.abc import Iterator

from commit import rules
from commit.world import STALE, Bounds, Rank, Stage, Transport, World, parts

Next = tuple[str, World]


def following(bounds: Bounds, world: World) -> Iterator[Next]:
    """All worlds that one action leads to, with its name."""
    for number, rank in enumerate(world.ranks):
        if rank.acts and not rank.broken:
            yield from _train(bounds, world, number, rank)
            yield from _end(bounds, world, number, rank, kill=False)
        if rank.alive:
            yield from _faults(bounds, world, number, rank)
    yield from _change(bounds, world)


# -- a step --------------------------------------------------------------------------------------------------------
def _train(bounds: Bounds, world: World, number: int, rank: Rank) -> Iterator[Next]:
    """The next part of this rank's step, if its peers have done theirs."""
    g, step = rank.generation, rank.step
    peers = tuple(p for p in world.members(g) if p != number)

    def have(hop: int) -> bool:
        return all(world.sent & bounds.bit(g, step, hop, p, number) for p in peers)

    if rank.stage is Stage.COMPUTES and step < bounds.steps:
        moved = _send(bounds, world, number, 0, peers)
        if bounds.transport is Transport.TCP:
            yield f"{number} sends its gradients and its vote", _vote(bounds, moved, number, peers)
        else:
            yield f"{number} begins its sums", moved.with_rank(number, stage=Stage.SUMS)
    elif rank.stage is Stage.SUMS:
        if "end of the sums" in bounds.without:
            yield f"{number} votes while its sums are under way", _vote(bounds, world, number, peers)
        if have(0):
            yield f"the sums of {number} end", world.with_rank(number, stage=Stage.SUMMED)
        if _is_misled(world, peers, g, step):
            yield f"the sums of {number} end with old data", world.with_rank(number, stage=Stage.SUMMED, stale=True)
    elif rank.stage is Stage.SUMMED:
        if "vote" in bounds.without:
            yield f"{number} commits", _decide(bounds, world, number)
        elif "vote in its step" in bounds.without:  # it is read before the next one
            if g not in rank.history or all(world.sent & bounds.bit(g, step - 1, 1, p, number) for p in peers):
                yield f"{number} votes and commits", _decide(bounds, _vote(bounds, world, number, peers), number)
        else:
            yield f"{number} votes", _vote(bounds, world, number, peers)
    elif rank.stage is Stage.VOTED and have(1):
        if "second hop" in bounds.without:
            yield f"{number} has all votes", _decide(bounds, world, number)
        else:
            moved = _send(bounds, world, number, 2, peers)
            yield f"{number} has all votes", moved.with_rank(number, stage=Stage.COLLECTED)
    elif rank.stage is Stage.COLLECTED and have(2):
        yield f"{number} has the sum of the votes", _decide(bounds, world, number)


def _is_misled(world: World, peers: tuple[int, ...], generation: int, step: int) -> bool:
    """Whether an aborted kernel of a peer may have said that it has sent what it has not."""
    return any(world.ranks[p].aborted == (generation, step + 1) for p in peers)


def _send(bounds: Bounds, world: World, number: int, hop: int, receivers: tuple[int, ...]) -> World:
    rank, sent = world.ranks[number], world.sent
    for receiver in receivers:
        sent |= bounds.bit(rank.generation, rank.step, hop, number, receiver)
    return world._replace(sent=sent)


def _vote(bounds: Bounds, world: World, number: int, receivers: tuple[int, ...]) -> World:
    return _send(bounds, world, number, 1, receivers).with_rank(number, stage=Stage.VOTED)


def _decide(bounds: Bounds, world: World, number: int) -> World:
    """The rank has the sum of all votes."""
    rank = world.ranks[number]
    g, peers = rank.generation, world.members(rank.generation)
    alone = rank.woke and any(world.has_left(p, g) for p in peers if p != number)
    intact = (not rank.lost or "vouch" in bounds.without) and (not alone or "look after a freeze" in bounds.without)
    if not rules.counts(g, summed=True, intact=intact):
        return _broken(bounds, world, number)
    early = "end of the sums" in bounds.without and _is_misled(world, peers, g, rank.step)
    history = (*rank.history, STALE if rank.stale or early else g)
    return world.with_rank(number, history=history, stage=Stage.COMPUTES, stale=False, woke=False)


# -- the end of a generation, on one rank ------------------------------------------------------------------------------
def _end(bounds: Bounds, world: World, number: int, rank: Rank, *, kill: bool) -> Iterator[Next]:
    """The rank gives its generation up, for any reason, or dies; perhaps while it sends."""
    peers = tuple(p for p in world.members(rank.generation) if p != number)
    what = "is killed" if kill else "gives its generation up"
    worlds = {"": world}
    if rank.acts and not rank.broken:
        if rank.stage is Stage.SUMMED and "vote" not in bounds.without:
            worlds |= {f" while it votes, {p}": _vote(bounds, world, number, p) for p in parts(peers) if p}
        elif rank.stage is Stage.VOTED and all(
            world.sent & bounds.bit(rank.generation, rank.step, 1, p, number) for p in peers
        ):
            hops = {p: _send(bounds, world, number, 2, p) for p in parts(peers) if p}
            worlds |= {f" while it sends its chunk, {p}": moved for p, moved in hops.items()}
    for when, moved in worlds.items():
        if kill:
            yield f"{number} {what}{when}", moved.with_rank(number, alive=False)._replace(kills=world.kills + 1)
        else:
            yield f"{number} {what}{when}", _broken(bounds, moved, number)


def _broken(bounds: Bounds, world: World, number: int) -> World:
    rank = world.ranks[number]
    waits = bounds.transport is Transport.SHARDED and rank.stage >= Stage.VOTED and "late commit" not in bounds.without
    running = rank.stage is Stage.SUMS or (rank.stage >= Stage.VOTED and "end of the sums" in bounds.without)
    kernel = bounds.transport is Transport.DEVICE and running
    return world.with_rank(
        number,
        broken=True,
        stage=Stage.COMPUTES,
        stale=False,
        woke=False,
        voted=rank.generation if waits else 0,
        aborted=(rank.generation, rank.step + 1) if kernel else rank.aborted,
    )


def _faults(bounds: Bounds, world: World, number: int, rank: Rank) -> Iterator[Next]:
    if world.kills < bounds.kills:
        yield from _end(bounds, world, number, rank, kill=True)
    if rank.frozen:
        woke = rank.stage >= Stage.VOTED
        yield f"{number} goes on", world.with_rank(number, frozen=False, woke=woke)
    elif world.freezes < bounds.freezes:
        yield f"{number} is frozen", world.with_rank(number, frozen=True)._replace(freezes=world.freezes + 1)
    if rank.lost:
        if rank.broken and rank.acts:
            yield f"the lease of {number} is there again", world.with_rank(number, lost=False)
    elif world.losses < bounds.losses:
        yield f"the lease of {number} expires", world.with_rank(number, lost=True)._replace(losses=world.losses + 1)


# -- changes of generation ---------------------------------------------------------------------------------------------
def _change(bounds: Bounds, world: World) -> Iterator[Next]:
    newest = len(world.generations)
    members = tuple(n for n, rank in enumerate(world.ranks) if rank.alive and not rank.lost)
    over = any(world.has_left(m, newest) and world.ranks[m].generation <= newest for m in world.members(newest))
    entering = all(world.ranks[m].generation < newest for m in world.members(newest))
    if members and newest < bounds.generations and (members != world.members(newest) or (over and not entering)):
        yield f"generation {newest + 1} of {members}", world._replace(generations=(*world.generations, members))
    if newest > 1 and all(_arrives(world.ranks[m], newest) for m in world.members(newest)):
        yield f"generation {newest} begins", enter(bounds, world)


def _arrives(rank: Rank, newest: int) -> bool:
    return rank.acts and rank.generation < newest and rank.broken


def enter(bounds: Bounds, world: World) -> World:
    """All ranks of the newest generation meet: late commits first, then every rank has the newest state."""
    newest = len(world.generations)
    members = world.members(newest)
    heard = rules.verdict(tuple(rules.row(bounds, world, m) for m in members))
    for place in heard.open:
        rank = world.ranks[members[place]]
        late = (rank.voted,) if place in heard.late else ()
        world = world.with_rank(members[place], voted=0, history=(*rank.history, *late))
    begins = rules.entry(tuple(rules.row(bounds, world, m) for m in members), bounds.shards)
    for place in begins.partial:  # starts anew: its state is lost
        world = world.with_rank(members[place], alive=False)
    for place, member in enumerate(members):
        sources = [members[s] for s in begins.sources if bounds.shard(members[s]) == bounds.shard(member)]
        history = world.ranks[sources[0]].history if place in begins.receivers else world.ranks[member].history
        world = world.with_rank(member, generation=newest, broken=False, history=history)
    return world
