"""The final state of a rank, in the memory of its node while its process starts again.

The process that starts takes it before its first generation, and is a rank that holds state from then on. So peers
receive it as from any survivor, and it is no checkpoint.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from elastrain.api import names
from elastrain.api.settings import Shards
from elastrain.elastic.checkpoint.division import Cut, Writers
from elastrain.elastic.checkpoint.rules import Checkpoint
from elastrain.elastic.checkpoint.store import DirectoryStore
from elastrain.elastic.checkpoint.tier import Tier

log = structlog.get_logger(__name__)


class KeptState:
    """Of the ranks of one worker; of a sharded model each shard has a folder of its own."""

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: the worker's, which its agent deletes; None: nothing is kept."""
        self._folder = folder

    @classmethod
    def of(cls, environment: Mapping[str, str], shards: Shards = 1) -> KeptState:
        """Of this rank. Of one copy over all ranks (``shards`` is "all") nothing is: a part is lost with any rank."""
        uid, worker = environment.get(names.ENV_JOB_UID), environment.get(names.ENV_WORKER)
        return cls(Path(names.node_memory(uid)) / worker if uid and worker and shards != "all" else None)

    def save(self, tree: Any, step: int, generation: int, lineage: str, writers: Writers) -> bool:
        """Whether ``tree``, the state of this rank, is there now."""
        if self._folder is None:
            return False
        tier = self._tier(writers.shard, writers.shards)
        try:
            tier.save(tree, step=step, generation=generation, lineage=lineage, writers=writers)
        except Exception as e:
            log.error("the state cannot be kept", path=tier.where, error=str(e))
            return False
        return True

    def load(self, cut: Cut) -> Any:
        """The state of the shard of ``cut``; None: there is none that can be read."""
        tier = self._tier(cut.grid.shard, cut.grid.shape.size) if self._folder is not None else None
        try:
            return next((tier.load(kept, cut) for kept in tier.complete()), None) if tier is not None else None
        except Exception as e:  # torch raises many kinds for damaged files
            log.error("the kept state cannot be read", error=str(e)[:300])
            return None

    def newest(self) -> Checkpoint | None:
        """The newest state that ranks of this worker have kept."""
        tiers = [Tier("memory", DirectoryStore(path)) for path in (self._folder.glob("*-of-*") if self._folder else ())]
        return max((kept for tier in tiers for kept in tier.complete()), key=lambda kept: kept.order, default=None)

    def drop(self) -> None:
        """Nothing can continue from it."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _tier(self, shard: int, shards: int) -> Tier:
        assert self._folder is not None
        return Tier("memory", DirectoryStore(self._folder / f"{shard}-of-{shards}"), keep=1)
