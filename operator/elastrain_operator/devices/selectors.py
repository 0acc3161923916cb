"""Selectors of devices, as DeviceClasses and claims write them in CEL: the part that is evaluated here. Pure.

Evaluated are conjunctions (``&&``) of comparisons of the driver, of an attribute with a literal, and of a capacity
with a quantity. That is what the classes of published drivers consist of. Everything else raises :class:`NotCounted`:
a guess about a tenant's expression would promise devices that the scheduler refuses. Source: ``DeviceSelector`` of
``resource.k8s.io/v1``.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from elastrain_operator.allocation.resources import quantity

Value = str | int | bool
MOST_TEXT = 1000
"""Characters of a selector that is evaluated."""
MOST_TERMS = 16

_STRING = r"""(?:"[^"\\]*"|'[^'\\]*')"""
_TERM = re.compile(rf"(?:{_STRING}|(?!&&)[^\"'])*")
"""Up to the next ``&&`` outside of a string, or a string that has an escape or no end."""
_FIELD = rf"\[\s*({_STRING})\s*\](?:\.(\w+)|\[\s*({_STRING})\s*\])"
_COMPARED = r"\s*(==|!=|<=|>=|<|>)\s*"
_DRIVER = re.compile(rf"device\.driver\s*(==|!=)\s*({_STRING})")
_ATTRIBUTE = re.compile(rf"device\.attributes{_FIELD}{_COMPARED}({_STRING}|-?\d{{1,18}}|true|false)")
_FLAG = re.compile(rf"(!?)\s*device\.attributes{_FIELD}")
_CAPACITY = re.compile(rf"device\.capacity{_FIELD}\.compareTo\(\s*quantity\(\s*({_STRING})\s*\)\s*\){_COMPARED}0")
_MORE_OR_LESS = re.compile(
    rf"device\.capacity{_FIELD}\.(isGreaterThan|isLessThan)\(\s*quantity\(\s*({_STRING})\s*\)\s*\)"
)
_COMPARISONS: Mapping[str, Callable[[Value, Value], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


class NotCounted(Exception):
    """Devices of a claim cannot be counted. ``str()`` says why, for people."""


@dataclass(frozen=True, slots=True)
class Test:
    """One comparison."""

    field: str
    """``driver``, ``attributes`` or ``capacity``."""
    name: str
    """Domain and name: ``gpu.example.com/model``; empty for the driver."""
    operator: str
    value: Value


def parse(text: str) -> tuple[Test, ...]:
    """The comparisons that must all hold, in time linear in ``text``. Raises :class:`NotCounted`."""
    found = f"a selector of more than {MOST_TEXT} characters" if len(text) > MOST_TEXT else _parsed(text)
    if isinstance(found, str):
        raise NotCounted(found)
    return found


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple[Test, ...] | str:
    """Refusals are kept as well: each allocation asks again. (An exception would not be.)"""
    try:
        terms = list(_terms(text))
        if len(terms) > MOST_TERMS:
            raise NotCounted(f"a selector of more than {MOST_TERMS} terms")
        return tuple(_test(term) for term in terms)
    except NotCounted as error:
        return str(error)


def holds(test: Test, driver: str, attributes: Mapping[str, Value], capacity: Mapping[str, int]) -> bool:
    """Whether a device passes. Raises :class:`NotCounted` where CEL ends with an error: the device does not have the
    field, or it is of another type. The scheduler then finds no node for the pod."""
    if test.field == "driver":
        return _COMPARISONS[test.operator](driver, test.value)
    known = attributes if test.field == "attributes" else capacity
    if test.name not in known:
        raise NotCounted(f"a selector that asks for {test.name}, which a device does not have")
    have = known[test.name]
    if type(have) is not type(test.value):
        raise NotCounted(f"a selector that compares {test.name} with a value of another type")
    return _COMPARISONS[test.operator](have, test.value)


def _terms(text: str) -> Iterator[str]:
    end = -2
    while end < len(text):
        found = _TERM.match(text, end + 2)
        assert found is not None, "it may be empty"
        term, end = found[0].strip(), found.end()
        if end < len(text) and text[end] != "&":
            raise NotCounted("a selector with a string that has an escape, or no end")
        if term.startswith("(") and term.endswith(")") and "(" not in term[1:]:
            term = term[1:-1].strip()
        yield term


def _test(term: str) -> Test:
    if found := _DRIVER.fullmatch(term):
        return Test("driver", "", found[1], _literal(found[2]))
    if found := _ATTRIBUTE.fullmatch(term):
        value = _literal(found[5])
        if isinstance(value, bool) and found[4] not in ("==", "!="):
            raise NotCounted("a selector that orders truth values")
        return Test("attributes", _name(found, 1), found[4], value)
    if found := _FLAG.fullmatch(term):
        return Test("attributes", _name(found, 2), "==", not found[1])
    if found := _CAPACITY.fullmatch(term):
        return Test("capacity", _name(found, 1), found[5], _quantity(found[4]))
    if found := _MORE_OR_LESS.fullmatch(term):
        return Test("capacity", _name(found, 1), ">" if found[4] == "isGreaterThan" else "<", _quantity(found[5]))
    raise NotCounted("a selector that is more than comparisons of driver, attributes and capacities")


def _name(found: re.Match[str], first: int) -> str:
    domain, word, quoted = found.group(first, first + 1, first + 2)
    return f"{domain[1:-1]}/{word or quoted[1:-1]}"


def _literal(text: str) -> Value:
    if text[0] in "\"'":
        return text[1:-1]
    return text == "true" if text in ("true", "false") else int(text)


def _quantity(text: str) -> int:
    try:
        return quantity("", text[1:-1])
    except ValueError as error:
        raise NotCounted(f"a selector with an unreadable quantity: {error}") from None
