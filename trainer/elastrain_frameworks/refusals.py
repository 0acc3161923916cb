"""Options of a framework that have no meaning in an elastic job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


def given(value: Any) -> bool:
    """Whether the option has a value that turns something on."""
    return bool(value)


@dataclass(frozen=True, slots=True)
class Refusal:
    """One option."""

    option: str
    """Its name, as the user writes it."""
    instead: str
    """What to do instead."""
    refused: Callable[[Any], bool] = given
    """Whether this value is refused. An option without a value, or with None, never is."""


def refuse(values: Mapping[str, Any], refusals: Iterable[Refusal], also: Iterable[str] = ()) -> None:
    """Raises ``ValueError`` that names all refused options of ``values``, their values and the ways out.

    ``also``: what is wrong besides, which comes first.
    """
    found = [*also]
    found += [
        f"{refusal.option}: {word(value)}: not in an elastic job; {refusal.instead}"
        for refusal in refusals
        if (value := values.get(refusal.option)) is not None and refusal.refused(value)
    ]
    if found:
        raise ValueError("\n".join(found))


def word(value: Any) -> str:
    """The text of an option's value, which may be an enumeration member."""
    return str(getattr(value, "value", value)).lower()


SUMS = (
    "the ranks may change in the middle of the call. job.add(name=number) before the backward sums over the global "
    "batch, and job.sums has the sums behind it; its mean loss is job.loss; between loops: job.all_reduce()"
)
"""What to do in training in place of a call that makes one value of all ranks."""


def refused(call: str, instead: str) -> Callable[..., Any]:
    """A method of a framework's object that has no meaning in an elastic job."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{call}: not in an elastic job; {instead}")

    method.__doc__ = f"Raises ``NotImplementedError``: {instead}."
    return method


def one_part(call: str, where: str) -> RuntimeError:
    """Of such a ``call``: it has a meaning ``where`` each rank has all samples."""
    return RuntimeError(f"{call}: only {where}, of which each rank reads all samples: in training {SUMS}")


def refuse_chosen_batch(job: Any, adapter: str) -> None:
    """Raises ``ValueError`` if ``job`` has ``spec.batch``: ``adapter`` counts one batch of the script for each step."""
    if job.chooses_batch:
        raise ValueError(f"{adapter}: not with spec.batch: call job.steps() in the script itself, or remove spec.batch")
