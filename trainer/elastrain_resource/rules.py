"""Rules between fields, each in one place: in Python for local mode and in CEL for the API server, with the same text.

Rules about one field (positive, enum, pattern) are in the field's type and become plain schema. This module holds rules
that need several fields, the object's name, or a former value; those that ranks check, too, are in
:mod:`elastrain.api.rules`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elastrain.api.rules import PLACEHOLDER, Rule

MAX_NAME_LENGTH = 50
"""Pods are named ``<job>-<ordinal>``; their names, of at most 63 characters, become host names."""

_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"

_PLACEHOLDER_IN_BRACKETS = re.compile(r" \(\{[\w.]+\}\)")


def as_validation(rule: Rule, field_path: str, value: str) -> dict[str, str]:
    """A rule as an item of ``x-kubernetes-validations``.

    ``field_path`` is the path that the API server names (relative to the object; '' for the object itself);
    ``value`` is the CEL expression of the field's value. The message: ``<field> (<value>) <words>``.
    """
    text = f"{rule.field} (%s) {PLACEHOLDER.sub('%s', rule.words)}"
    values = [value, *(f"self.{name}" for name in PLACEHOLDER.findall(rule.words))]
    validation = {
        "rule": rule.cel,
        # The API server shows `message` if messageExpression fails to evaluate.
        "message": f"{rule.field} {_PLACEHOLDER_IN_BRACKETS.sub('', rule.words)}",
        # format() rather than `+`: the API server estimates a sum of strings as too expensive.
        "messageExpression": f"{json.dumps(text)}.format([{', '.join(values)}])",
    }
    return validation | ({"fieldPath": field_path} if field_path else {})


@dataclass(frozen=True, slots=True)
class SizeRule(Rule):
    """A rule between the sizes of a job, with its twin in Python."""

    needs: frozenset[str]
    """Wire names of the fields of ``holds``."""
    holds: Callable[[dict[str, Any]], bool]
    """Whether the rule holds for the present sizes, by wire name."""


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
"""``1 <= minReplicas <= replicas <= maxReplicas`` and ``warmSpares <= maxReplicas``, by the field at fault; the field
types exclude negative values."""

NAME = Rule(
    field="metadata.name",
    words=f"must be lower-case letters, digits and '-', begin and end with a letter or digit, and have at most "
    f"{MAX_NAME_LENGTH} characters: worker pods are named after it",
    cel=f"size(self.metadata.name) <= {MAX_NAME_LENGTH} && self.metadata.name.matches('{_LABEL}')",
)


def _fixed_unless_suspended(field: str, same: str) -> Rule:
    """``same``: in CEL, whether the field has its former value."""
    words = "may only change while suspend is true: running workers keep their former setting"
    return Rule(field, words, cel=f"self.suspend || oldSelf.suspend || {same}")


def _same(value: str) -> str:
    """In CEL, whether ``value``, an expression over ``self``, is what it was for ``oldSelf``."""
    return f"{value} == {value.replace('self.', 'oldSelf.')}"


NPROC_IS_FIXED = _fixed_unless_suspended("nprocPerNode", _same("self.nprocPerNode"))
"""Otherwise old and new workers would share a generation until the last old one is lost, at an unintended world
size."""

DIMENSIONS_ARE_UNIQUE = Rule(
    field="mesh",
    words="must have dimensions of different names",
    cel="!has(self.mesh) || self.mesh.all(d, self.mesh.exists_one(e, e.name == d.name))",
)

MESH_HAS_SHARDS = Rule(
    field="mesh",
    words="must have a dimension dp_shard, over which fully_shard spreads the parameters (its size may be 1)",
    cel="!has(self.mesh) || self.mesh.exists(d, d.name == 'dp_shard')",
)


MOST_DIMENSIONS, MOST_RANKS = 6, 65536
"""Of a mesh; the product of the widest (``WIDEST_DIMENSION``) fits the API server's integers."""


def _product(of: str) -> str:
    """In CEL, which has no fold: the product of the sizes of the dimensions in ``of``."""
    return "*".join(f"(size({of}) > {i} ? {of}[{i}].size : 1)" for i in range(MOST_DIMENSIONS))


MESH_IS_BOUNDED = Rule(
    field="mesh",
    words=f"must have at most {MOST_RANKS} ranks, the product of the sizes",
    cel=f"!has(self.mesh) || {_product('self.mesh')} <= {MOST_RANKS}",
)

MESH_IS_ALONE = Rule(
    field="mesh",
    words="must be absent beside parallelism.shards and parallelism.tensor, which are short forms of it",
    cel="!has(self.mesh) || (string(self.shards) == '1' && self.tensor == 1)",
)

HAS_MESH = "(has(self.parallelism) && has(self.parallelism.mesh))"

_WHOLE_MODELS = "(!has(self.parallelism) || (string(self.parallelism.shards) == '1' && !has(self.parallelism.mesh)))"

_IN_GROUPS = (
    "has(self.parallelism) && string(self.parallelism.shards) != '1' && string(self.parallelism.shards) != 'all'"
)

MESH_FITS = Rule(
    field="parallelism.mesh",
    words="must have as many ranks as divide nprocPerNode ({nprocPerNode}), which must be a number, or a multiple of "
    "it: a worker is one group or several, or a group is several workers",
    cel=f"!{HAS_MESH} || (type(self.nprocPerNode) == int"
    f" && (int(self.nprocPerNode) % ({_product('self.parallelism.mesh')}) == 0"
    f" || ({_product('self.parallelism.mesh')}) % int(self.nprocPerNode) == 0))",
)

SHARDS_FIT = Rule(
    field="parallelism.shards",
    words="must divide nprocPerNode ({nprocPerNode}), which must be a number, or be a multiple of it: a worker is one "
    "group or several, or a group is several workers",
    cel=f"!({_IN_GROUPS}) || (type(self.nprocPerNode) == int"
    " && (int(self.nprocPerNode) % int(self.parallelism.shards) == 0"
    " || int(self.parallelism.shards) % int(self.nprocPerNode) == 0))",
)

SHARDS_ARE_FIXED = _fixed_unless_suspended(
    "parallelism.shards", _same("(has(self.parallelism) ? string(self.parallelism.shards) : '1')")
)

TENSOR_FITS = Rule(
    field="parallelism.tensor",
    words="must divide parallelism.shards, which must be a number: the ranks of a group are a grid of this width",
    cel="!has(self.parallelism) || self.parallelism.tensor == 1 || (string(self.parallelism.shards) != 'all'"
    " && int(self.parallelism.shards) % self.parallelism.tensor == 0)",
)

TENSOR_IS_FIXED = _fixed_unless_suspended(
    "parallelism.tensor", _same("(has(self.parallelism) ? self.parallelism.tensor : 1)")
)

MESH_IS_FIXED = _fixed_unless_suspended(
    "parallelism.mesh",
    f"({_same(HAS_MESH)} && (!{HAS_MESH} || {_same('self.parallelism.mesh')}))",
)

MAX_REDONE_STEPS_IS_FIXED = _fixed_unless_suspended(
    "parallelism.maxRedoneSteps", _same("(has(self.parallelism) ? self.parallelism.maxRedoneSteps : 20)")
)
"""Ranks would otherwise copy their shards after different steps."""

CHECKPOINT_PATH_IS_FIXED = _fixed_unless_suspended(
    "checkpoint.path", _same("(has(self.checkpoint) ? self.checkpoint.path : '')")
)
"""Later workers would otherwise save to, and resume from, another path than the running ones, and lose progress."""

ARCHIVE_PATH_IS_FIXED = _fixed_unless_suspended(
    "checkpoint.archive.path",
    _same("(has(self.checkpoint) && has(self.checkpoint.archive) ? self.checkpoint.archive.path : '')"),
)

SUSPEND_KEEPS_STATE = Rule(
    field="spec.suspend",
    words="must not become true: the committed steps (status.step) would be lost, since the job has no checkpoint or "
    "its last save failed (condition CheckpointHealthy). To accept that, set spec.protectState to false",
    cel="!self.spec.suspend || oldSelf.spec.suspend || !self.spec.protectState || !has(oldSelf.status)"
    " || !has(oldSelf.status.step) || oldSelf.status.step == 0 || has(oldSelf.status.completionTime)"
    " || (has(oldSelf.spec.checkpoint) && !(has(oldSelf.status.conditions) && oldSelf.status.conditions"
    ".exists(c, c.type == 'CheckpointHealthy' && c.status == 'False' && c.reason != 'CopyFailed')))",
)
"""The workers that run were started with the former spec: a checkpoint that the same change adds saves nothing."""

BATCH_IS_OF_WHOLE_MODELS = Rule(
    field="batch",
    words="must be absent if parallelism.shards is not 1, or with a mesh: the noise of sharded gradients is not "
    "measured",
    cel=f"!has(self.batch) || {_WHOLE_MODELS}",
)

BATCH_IS_FIXED = _fixed_unless_suspended(
    "batch", "(has(self.batch) == has(oldSelf.batch) && (!has(self.batch) || self.batch == oldSelf.batch))"
)
"""Ranks with other bounds would choose, and scale learning rates, in another way."""

SHARES_ARE_OF_REPLICAS = Rule(
    field="shares",
    words="must be Equal if parallelism.shards is all, or with a mesh: shares are those of replicas",
    cel="!has(self.shares) || self.shares == 'Equal' || !has(self.parallelism) || "
    "(string(self.parallelism.shards) != 'all' && !has(self.parallelism.mesh))",
)

MAX_SHARE_IS_OF_MEASURED = Rule(
    field="maxShare",
    words="must be absent if shares is Equal",
    cel="!has(self.maxShare) || (has(self.shares) && self.shares == 'Measured')",
)

SHARES_ARE_FIXED = _fixed_unless_suspended("shares", _same("(has(self.shares) ? self.shares : 'Equal')"))

MAX_SHARE_IS_FIXED = _fixed_unless_suspended("maxShare", _same("(has(self.maxShare) ? self.maxShare : 2.0)"))
"""Ranks with different rules would not compute the same division of a batch."""

DIVERGENCE_IS_FIXED = _fixed_unless_suspended(
    "divergence",
    "(" + _same("(has(self.divergence) ? self.divergence.everySteps : 100)")
    + " && " + _same("(has(self.divergence) ? self.divergence.withoutMajority : 'Fail')") + ")",
)  # fmt: skip
"""Ranks would otherwise compare their states after different steps."""

MANAGED_BY_IS_FIXED = Rule(
    field="managedBy",
    words="must not change: two managers would act on the same workers; recreate the job",
    cel=_same("(has(self.managedBy) ? self.managedBy : '')"),
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
