"""Which strategy trains the models of a job."""

from __future__ import annotations

from typing import Literal

from elastrain.elastic.strategies.bitwise import Bitwise, make_deterministic
from elastrain.elastic.strategies.replicated import Replicated
from elastrain.elastic.strategies.sharded import Sharded
from elastrain.elastic.strategies.strategy import Strategy


def strategy_for(numerics: Literal["exact", "bitwise"], shards: int, shard: int) -> Strategy:
    """``shards``: ``spec.parallelism.shards``. ``shard``: of this rank. Raises ``ValueError`` for what does not fit."""
    if shards > 1 and numerics == "bitwise":
        raise ValueError(
            "elastrain.join(numerics='bitwise'): not with spec.parallelism.shards yet (docs/sharded.md): use 'exact'"
        )
    if shards > 1:
        return Sharded(shards, shard)
    if numerics == "bitwise":
        make_deterministic()
        return Bitwise()
    return Replicated()
