"""Rules between fields, each said once: in Python for local mode and in CEL for the API server, with the same words.

Rules about one field (positive, enum, pattern) are in the field's type and become plain schema; here is what needs more
than one field, the object's name, or its former value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_NAME_LENGTH = 50
"""Pods are called ``<job>-<ordinal>`` and their names, at most 63 characters long, become host names."""

_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_PLACEHOLDER_IN_BRACKETS = re.compile(r" \(\{\w+\}\)")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule about ``field`` of an object."""

    field: str
    """Wire name of the field that is at fault where the rule does not hold."""
    words: str
    """The rule, to be read after the field and its value. ``{name}`` stands for the value of another field."""
    cel: str
    """True where the rule holds; ``self`` is the object (and ``oldSelf`` what it was, in a transition rule)."""

    def in_words(self, values: dict[str, Any]) -> str:
        """The rule with the values of the other fields (wire names) filled in."""
        return _PLACEHOLDER.sub(lambda m: str(values[m[1]]), self.words)

    def as_validation(self, field_path: str, value: str) -> dict[str, str]:
        """The rule as an item of ``x-kubernetes-validations``.

        ``field_path`` is the path that the API server names (relative to the object; '' for the object itself);
        ``value`` is the CEL expression of the field's value. The message: ``<field> (<value>) <words>``.
        """
        text = f"{self.field} (%s) {_PLACEHOLDER.sub('%s', self.words)}"
        values = [value, *(f"self.{name}" for name in _PLACEHOLDER.findall(self.words))]
        validation = {
            "rule": self.cel,
            # `message` is what an API server shows where messageExpression fails to evaluate.
            "message": f"{self.field} {_PLACEHOLDER_IN_BRACKETS.sub('', self.words)}",
            # format() rather than `+`: the API server takes a sum of strings for too expensive.
            "messageExpression": f"{json.dumps(text)}.format([{', '.join(values)}])",
        }
        return validation | ({"fieldPath": field_path} if field_path else {})


@dataclass(frozen=True, slots=True)
class SizeRule(Rule):
    """A rule between the sizes of a job, with its twin in Python."""

    needs: frozenset[str]
    """Wire names of the fields that ``holds`` reads."""
    holds: Callable[[dict[str, Any]], bool]
    """Of the sizes that are present, by wire name."""


SIZES = {
    rule.field: rule
    for rule in (
        SizeRule(
            field="minReplicas",
            words="must not be greater than maxReplicas ({maxReplicas})",
            cel="self.minReplicas <= self.maxReplicas",
            needs=frozenset({"minReplicas", "maxReplicas"}),
            holds=lambda size: bool(size["minReplicas"] <= size["maxReplicas"]),
        ),
        SizeRule(
            field="replicas",
            words="must be between minReplicas ({minReplicas}) and maxReplicas ({maxReplicas})",
            cel="!has(self.replicas) || (self.minReplicas <= self.replicas && self.replicas <= self.maxReplicas)",
            needs=frozenset({"minReplicas", "replicas", "maxReplicas"}),
            holds=lambda size: bool(size["minReplicas"] <= size["replicas"] <= size["maxReplicas"]),
        ),
        SizeRule(
            field="warmSpares",
            words="must not be greater than maxReplicas ({maxReplicas})",
            cel="self.warmSpares <= self.maxReplicas",
            needs=frozenset({"warmSpares", "maxReplicas"}),
            holds=lambda size: bool(size["warmSpares"] <= size["maxReplicas"]),
        ),
    )
}
"""``1 <= minReplicas <= replicas <= maxReplicas`` and ``warmSpares <= maxReplicas``, by the field at fault; that they
are not negative is in their type."""

NAME = Rule(
    field="metadata.name",
    words=f"must be lower-case letters, digits and '-', begin and end with a letter or digit, and have at most "
    f"{MAX_NAME_LENGTH} characters: worker pods are named after it",
    cel=f"size(self.metadata.name) <= {MAX_NAME_LENGTH} && self.metadata.name.matches('{_LABEL}')",
)

CHECKPOINT_PATH = Rule(
    field="path",
    words="must begin with '/' (or, in local mode, with '.')",
    cel="self.path.startsWith('/') || self.path.startsWith('.')",
)

_ONLY_WHILE_SUSPENDED = "may only change while suspend is true: running workers keep what they were started with"

NPROC_IS_FIXED = Rule(
    field="nprocPerNode",
    words=_ONLY_WHILE_SUSPENDED,
    cel="self.suspend || oldSelf.suspend || self.nprocPerNode == oldSelf.nprocPerNode",
)
"""Workers of both kinds would share a generation until the last old one is lost, at a world size nobody asked for."""

CHECKPOINT_PATH_IS_FIXED = Rule(
    field="checkpoint.path",
    words=_ONLY_WHILE_SUSPENDED,
    cel="self.suspend || oldSelf.suspend || (has(self.checkpoint) ? self.checkpoint.path : '')"
    " == (has(oldSelf.checkpoint) ? oldSelf.checkpoint.path : '')",
)
"""Workers started later would save to, and resume from, another place than the running ones: progress would be lost."""

MANAGED_BY_IS_FIXED = Rule(
    field="managedBy",
    words="must not change: two managers would act on the same workers; create the job anew",
    cel="(has(self.managedBy) ? self.managedBy : '') == (has(oldSelf.managedBy) ? oldSelf.managedBy : '')",
)

TRAINER_HAS_COMMAND = Rule(
    field="containers",
    words="must have a command in the container named trainer, else in the first one: elastrain starts its agent "
    "before it and cannot see the image's own entrypoint",
    cel="self.exists(c, c.name == 'trainer')"
    " ? self.exists(c, c.name == 'trainer' && has(c.command) && size(c.command) > 0)"
    " : has(self[0].command) && size(self[0].command) > 0",
)


def name_is_valid(name: str) -> bool:
    """Python twin of :data:`NAME`."""
    return len(name) <= MAX_NAME_LENGTH and re.fullmatch(_LABEL.strip("^$"), name) is not None
