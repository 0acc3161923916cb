"""Rules of settings that reach the ranks: in Python here, and in CEL in the schema of the resource, with the same text.

Rules between other fields of the resource are in :mod:`elastrain_resource.rules`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PLACEHOLDER = re.compile(r"\{([\w.]+)\}")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule about ``field`` of an object."""

    field: str
    """Wire name of the field that is at fault if the rule is broken."""
    words: str
    """The rule's text, which follows the field and its value. ``{name}`` stands for the value of another field."""
    cel: str
    """True if the rule holds; ``self`` is the object (and ``oldSelf`` its former value, in a transition rule)."""

    def in_words(self, values: dict[str, Any]) -> str:
        """The rule's text with the values of the other fields (wire names)."""
        return PLACEHOLDER.sub(lambda m: str(values[m[1]]), self.words)


CHECKPOINT_PATH = Rule(
    field="path",
    words="must begin with '/' (or, in local mode, with '.'), or be a URL such as s3://bucket/prefix",
    cel="self.path.startsWith('/') || self.path.startsWith('.') || self.path.matches('^[a-z][a-z0-9+-]*://[^/]')"
    " || self.path.startsWith('file:///')",
)

NO_CREDENTIALS_IN_PATH = Rule(
    field="path",
    words="must contain no credentials and no query: set them in the trainer container's environment, from a Secret",
    cel="!self.path.matches('^[a-z][a-z0-9+-]*://([^/]*@|.*[?#])')",
)

CHECKPOINT_PATHS: tuple[tuple[Rule, Callable[[str], bool]], ...] = (
    (
        CHECKPOINT_PATH,
        lambda path: re.match(r"[/.]|[a-z][a-z0-9+-]*://[^/]|file:///", path) is not None,
    ),
    (NO_CREDENTIALS_IN_PATH, lambda path: re.match(r"[a-z][a-z0-9+-]*://([^/]*@|.*[?#])", path) is None),
)
"""The rules of a path or URL of checkpoints, and their Python twins."""

KNOWN_DIMENSIONS = {"dp_shard": "Batch", "ep": "Batch", "cp": "Sequence", "tp": "Tensors", "pp": "Layers"}
"""What dimensions of these names divide, if the mesh does not say it: torchtitan's names."""

DIMENSION, LONGEST_DIMENSION, WIDEST_DIMENSION = "^[a-z][a-z0-9_]*$", 16, 1024

DIVIDES_IS_KNOWN = Rule(
    field="divides",
    words=f"needs divides: what its ranks divide is known of {', '.join(KNOWN_DIMENSIONS)} only",
    cel=f"has(self.divides) || self.name in {list(KNOWN_DIMENSIONS)}",
)

SHARDS_DIVIDE_THE_BATCH = Rule(
    field="divides",
    words="must be Batch for dp_shard: fully_shard adds the gradients of its ranks, which must be of different samples",
    cel="self.name != 'dp_shard' || !has(self.divides) || self.divides == 'Batch'",
)

BATCH_BOUNDS = Rule(
    field="batch.max",
    words="must not be less than batch.min ({batch.min})",
    cel="!has(self.batch) || self.batch.min <= self.batch.max",
)
