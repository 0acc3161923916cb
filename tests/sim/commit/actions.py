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
    members = world.members(rank.generation)
    peers = tuple(p for p in members if p != number)
    above, below = bounds.parent(members, number), bounds.children(members, number)
    if rank.stage is Stage.COMPUTES and rank.step < bounds.steps:
        yield f"{number} begins its sums", _send(bounds, world, number, 0, peers).with_rank(number, stage=Stage.SUMS)
    elif rank.stage is Stage.SUMS:
        yield from _end_sums(bounds, world, number, rank, peers)
    elif rank.stage is Stage.SUMMED:
        if "vote" in bounds.without:
            yield f"{number} commits", _decide(bounds, world, number)
        elif "vote in its step" in bounds.without:  # it is read before the next one
            moved = _vote(bounds, world, number)
            if rank.generation not in rank.history or _has_voted(bounds, moved, number, rank.step - 1):
                yield f"{number} votes and commits", _decide(bounds, moved, number)
        else:
            yield f"{number} votes", _vote(bounds, world, number)
    elif rank.stage is Stage.VOTED and ("branch" in bounds.without or _have(bounds, world, number, 1, below)):
        if above:
            moved = _send(bounds, world, number, 1, above)
            yield f"{number} has the votes of its branch", moved.with_rank(number, stage=Stage.PASSED)
        else:
            moved = _send(bounds, world, number, 2, below)
            yield f"{number} has all votes", moved.with_rank(number, stage=Stage.HAS)
    elif rank.stage is Stage.PASSED and _have(bounds, world, number, 2, above):
        moved = _send(bounds, world, number, 2, below)
        yield f"{number} has the sum of the votes", moved.with_rank(number, stage=Stage.HAS)
    elif rank.stage is Stage.HAS:
        yield f"{number} decides", _decide(bounds, world, number)


def _end_sums(bounds: Bounds, world: World, number: int, rank: Rank, peers: tuple[int, ...]) -> Iterator[Next]:
    if "end of the sums" in bounds.without:
        yield f"{number} votes while its sums are under way", _vote(bounds, world, number)
    if _have(bounds, world, number, 0, peers):
        yield f"the sums of {number} end", world.with_rank(number, stage=Stage.SUMMED)
    if _is_misled(world, peers, rank.generation, rank.step):
        yield f"the sums of {number} end with old data", world.with_rank(number, stage=Stage.SUMMED, stale=True)


def _has_voted(bounds: Bounds, world: World, number: int, step: int) -> bool:
    """Whether the votes of all for ``step`` of this rank's generation are on their way."""
    generation = world.ranks[number].generation
    members = world.members(generation)
    return all(
        world.sent & bounds.bit(generation, step, 1, m, above) for m in members for above in bounds.parent(members, m)
    )


def _is_misled(world: World, peers: tuple[int, ...], generation: int, step: int) -> bool:
    """Whether an aborted kernel of a peer may have said that it has sent what it has not."""
    return any(world.ranks[p].aborted == (generation, step + 1) for p in peers)


def _have(bounds: Bounds, world: World, number: int, hop: int, senders: tuple[int, ...]) -> bool:
    """Whether the messages of ``senders`` for the present step have arrived."""
    rank = world.ranks[number]
    return all(world.sent & bounds.bit(rank.generation, rank.step, hop, p, number) for p in senders)


def _send(bounds: Bounds, world: World, number: int, hop: int, receivers: tuple[int, ...]) -> World:
    rank, sent = world.ranks[number], world.sent
    for receiver in receivers:
        sent |= bounds.bit(rank.generation, rank.step, hop, number, receiver)
    return world._replace(sent=sent)


def _vote(bounds: Bounds, world: World, number: int) -> World:
    """A leaf sends its vote at once."""
    members = world.members(world.ranks[number].generation)
    above, below = bounds.parent(members, number), bounds.children(members, number)
    world = world.with_rank(number, stage=Stage.VOTED)
    if not above or below:
        return world
    return _send(bounds, world, number, 1, above).with_rank(number, stage=Stage.PASSED)


def _decide(bounds: Bounds, world: World, number: int) -> World:
    """The rank has the sum of all votes."""
    rank = world.ranks[number]
    g, peers = rank.generation, world.members(rank.generation)
    neighbours = (*bounds.parent(peers, number), *bounds.children(peers, number))
    alone = rank.woke and any(world.has_left(p, g) for p in neighbours)
    intact = (not rank.lost or "vouch" in bounds.without) and (not alone or "look after a freeze" in bounds.without)
    if not rules.counts(g, summed=True, intact=intact):
        return _broken(bounds, world, number)
    early = "end of the sums" in bounds.without and _is_misled(world, peers, g, rank.step)
    history = (*rank.history, STALE if rank.stale or early else g)
    return world.with_rank(number, history=history, stage=Stage.COMPUTES, stale=False, woke=False)


# -- the end of a generation, on one rank ------------------------------------------------------------------------------
def _end(bounds: Bounds, world: World, number: int, rank: Rank, *, kill: bool) -> Iterator[Next]:
    """The rank gives its generation up, for any reason, or dies; perhaps while it sends."""
    what = "is killed" if kill else "gives its generation up"
    worlds = {"": world}
    if rank.acts and not rank.broken:
        members = world.members(rank.generation)
        above, below = bounds.parent(members, number), bounds.children(members, number)
        sends = (rank.stage is Stage.VOTED and not above and _have(bounds, world, number, 1, below)) or (
            rank.stage is Stage.PASSED and _have(bounds, world, number, 2, above)
        )
        some = [part for part in parts(below) if sends and 0 < len(part) < len(below)]
        worlds |= {f" while it sends the sum, {p}": _send(bounds, world, number, 2, p) for p in some}
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
        woke = rank.stage in (Stage.VOTED, Stage.PASSED)
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
