"""What ``elastrain verify`` passes to the training processes, in one environment variable. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from elastrain.api import names

ENV = names.ENV_VERIFY
"""``Settings`` as JSON. Set for the processes of a run of ``elastrain verify``, and in no other."""


OWN = "own"
"""The script's own types, instead of float64."""


class Settings(BaseModel):
    """One run."""

    model_config = ConfigDict(frozen=True)

    mode: Literal["reference", "job"]
    """The reference in plain torch, or the job itself."""
    records: Path
    """Folder of the records, one file for each process."""
    steps: int
    """Committed steps after which loops end."""
    seconds: float | None = None
    """Of a reference: it ends earlier, after at least ``fewest`` steps, if its loops have taken so long."""
    fewest: int = 1
    seed: int = 0
    """Added to that of the data."""
    dtype: str = "float64"
    """float64, or :data:`OWN`."""
    epoch_steps: int | None = None
    """Epochs of more steps are cut to so many, so that a short run has several; None: as the script says."""
    parts: tuple[tuple[int, int], ...] = ()
    """Of a reference: (step, parts): from this step on, each global batch is computed in so many parts, one after the
    other. Empty: as a whole."""
    shards: tuple[int, ...] = ()
    """Of a reference: numbers of ranks over which the runs shard the model; empty: each rank holds a whole one."""
    whole: bool = False
    """Batches are not cut into micro-batches, as in a framework's own loop."""
    perturbed: bool = False
    """Of a reference: each gradient is changed by a rounding error."""
    gate: Path | None = None
    """A file with the last :func:`position` that ranks may pass; None: all."""
    held: Path | None = None
    """A rank that is about to receive state waits while this file exists; None: it does not wait."""
    halted: Path | None = None
    """The same of a rank that is about to call a further ``job.backward()`` of a loop body."""

    def to_environment(self) -> dict[str, str]:
        return {ENV: self.model_dump_json()}

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Raises ``KeyError`` outside of a run."""
        return cls.model_validate_json(environ[ENV])


def position(step: int, *, in_body: bool) -> int:
    """A place where ranks can be held: after ``step`` commits, or in the loop body that follows. Ordered."""
    return 2 * step + in_body
