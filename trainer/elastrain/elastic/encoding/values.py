"""Values as bytes, for the network: typed, bounded, and decoded without running code that they name.

A value is a tag byte and what the tag asks for. The list of types is closed: Python's plain values and containers,
tensors, numpy's arrays and numbers, a few of the standard library and of torch (:mod:`.leaves`); and
dataclasses, enums and named tuples of modules that the receiver has loaded, which are built from their fields without
a call of theirs. Anything else is refused by its sender, by name. A container is encoded with what it contains, so that
an object in two places arrives as two.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from types import FunctionType, ModuleType
from typing import Any, cast

from elastrain.elastic.encoding.leaves import LEAVES, LEAVES_BY_TAG, Malformed

MAX_DEPTH = 64
"""Containers within each other."""
_LENGTH = struct.Struct("!Q")
_INT = struct.Struct("!q")
_FLOAT = struct.Struct("!d")
_COMPLEX = struct.Struct("!dd")
_INT64 = range(-(2**63), 2**63)
_PACKED = 16
"""Numbers from which a list of only int, or only float, is packed."""
_FACTORIES: Mapping[str, Callable[[], Any]] = {
    f.__name__: f for f in (list, dict, set, int, float, str, bytes, bool, tuple, complex, deque, Counter, OrderedDict)
}
"""Those that a ``defaultdict`` may have; they run without arguments."""
_FUNCTIONS_OF = ("torch", "math", "operator")
"""Packages whose functions may be values: some of torch's schedulers have one in their state."""


class NotEncodable(TypeError):
    """A value has no encoding. The message names its place and its type."""


def encode(value: Any, name: str = "value") -> bytes:
    """``value`` as bytes. Raises :class:`NotEncodable`, with ``name`` as the root of the place of what has none."""
    writer = _Writer(name)
    writer.put(value)
    return bytes(writer.out)


def decode(raw: bytes | bytearray | memoryview) -> Any:
    """The value of :func:`encode`. Its size is that of ``raw`` times a constant at most: no length in it is believed.

    Raises :class:`Malformed`, and nothing else.
    """
    reader = Reader(memoryview(raw).cast("B"))
    try:
        value = reader.take()
    except Malformed:
        raise
    except Exception as e:  # a key that cannot be hashed, a number out of range, text that is no UTF-8
        raise Malformed(f"{type(e).__name__}: {e}") from e
    if reader.left:
        raise Malformed(f"{reader.left} bytes after the value")
    return value


class _Writer:
    def __init__(self, name: str) -> None:
        self.out = bytearray()
        self._place: list[tuple[str, Any]] = [(name, None)]
        """A format and its value, so that no text is made unless a value is refused."""
        self._classes: dict[type, int] = {}
        """Those that have occurred, numbered: a name travels once."""

    def put(self, value: Any) -> None:
        """Append ``value``."""
        kind = type(value)
        if (simple := _SIMPLE.get(kind)) is not None:
            self.out += simple(value)
        elif (container := _CONTAINERS.get(kind)) is not None:
            container(self, value)
        elif (leaf := LEAVES.get(kind)) is not None or (leaf := _leaf_of(kind)) is not None:
            try:
                parts = leaf.parts(value)
            except TypeError as e:
                raise self.refused(f"{_name_of(kind)}: {e}") from e
            self.out += leaf.tag
            self.within(parts)
        elif isinstance(value, Enum) and kind.__members__.get(value.name) is value:
            self._named(b"e", kind, (), [value.name])
        elif is_dataclass(kind):
            names = [f.name for f in fields(kind)]
            if extra := vars(value).keys() - set(names) if hasattr(value, "__dict__") else ():
                raise self.refused(f"{_name_of(kind)} with the attribute {min(extra)!r}, which is no field")
            self._named(b"k", kind, names, [getattr(value, n) for n in names])
        elif isinstance(value, tuple) and hasattr(kind, "_fields") and kind.__base__ is tuple:
            self._named(b"n", kind, kind._fields, list(value))
        elif kind is FunctionType and _is_known(value):
            self.out += b"h"
            self.text(value.__module__)
            self.text(value.__qualname__)
        else:
            raise self.refused(_name_of(kind))

    def refused(self, what: str) -> NotEncodable:
        place = "".join(form.format(key) for form, key in self._place)
        return NotEncodable(f"{place} is a {what}, which cannot be sent to another worker")

    def count(self, tag: bytes, count: int) -> None:
        self.out += tag + _LENGTH.pack(count)

    def text(self, text: str) -> None:
        raw = text.encode("utf-8", "surrogatepass")
        self.out += _LENGTH.pack(len(raw)) + raw

    def within(self, value: Any, form: str = "", key: Any = None) -> None:
        """Append a value at the place ``form.format(key)`` of the present one."""
        if len(self._place) > MAX_DEPTH:
            raise self.refused(f"value nested deeper than {MAX_DEPTH} levels")
        self._place.append((form, key))
        self.put(value)
        self._place.pop()

    def items(self, tag: bytes, values: Iterable[Any], count: int) -> None:
        self.count(tag, count)
        for number, value in enumerate(values):
            self.within(value, "[{}]", number)

    def pairs(self, tag: bytes, value: Mapping[Any, Any]) -> None:
        self.count(tag, len(value))
        for key, of in value.items():
            self.within(key, ".keys()")
            self.within(of, "[{!r}]", key)

    def sequence(self, tag: bytes, packed: bytes, values: list[Any] | tuple[Any, ...]) -> None:
        """Append it, its numbers at once if they are all of one type: a generator's state has hundreds."""
        kinds = set(map(type, values)) if len(values) >= _PACKED else set()
        if kinds == {float}:
            self._pack(packed + b"d", array("d", values))
        elif kinds == {int} and all(v in _INT64 for v in values):
            self._pack(packed + b"q", array("q", values))
        else:
            self.items(tag, values, len(values))

    def _pack(self, tag: bytes, numbers: array[Any]) -> None:
        if sys.byteorder == "little":
            numbers.byteswap()
        self.count(tag, len(numbers))
        self.out += numbers.tobytes()

    def _named(self, tag: bytes, kind: type, names: Sequence[str], content: list[Any]) -> None:
        """A value of a class that the receiver finds by its name, with the ``names`` of its fields."""
        is_new = kind not in self._classes
        self.count(tag, self._classes.setdefault(kind, len(self._classes)))
        if is_new:
            if _find(kind.__module__, kind.__qualname__) is not kind:
                raise self.refused(f"{_name_of(kind)}, a class that is not found under this name")
            self.put((kind.__module__, kind.__qualname__, *names))
        for name, value in zip(names or [""], content, strict=True):
            self.within(value, ".{}" if name else "", name)


class Reader:
    """Decodes values from the front of a buffer. Raises any error for what is no value."""

    def __init__(self, raw: memoryview) -> None:
        self._raw, self._at, self._depth = raw, 0, 0
        self._classes: list[tuple[Any, list[str]]] = []
        """Those that have occurred, and the names of their fields."""

    @property
    def left(self) -> int:
        """Bytes that follow."""
        return len(self._raw) - self._at

    def bytes(self, count: int) -> memoryview:
        if not 0 <= count <= self.left:
            raise Malformed(f"{count} bytes are announced, {self.left} follow")
        self._at += count
        return self._raw[self._at - count : self._at]

    def count(self, width: int = 1) -> int:
        """A number of elements, of which each has at least ``width`` bytes."""
        (count,) = _LENGTH.unpack(self.bytes(_LENGTH.size))
        if count * width > self.left:
            raise Malformed(f"{count} elements are announced, {self.left} bytes follow")
        return int(count)

    def text(self) -> str:
        return str(self.bytes(self.count()), "utf-8", "surrogatepass")

    def take(self) -> Any:
        """The next value."""
        tag = bytes(self.bytes(1))
        self._depth += 1
        if self._depth > 2 * MAX_DEPTH:
            raise Malformed(f"nested deeper than {MAX_DEPTH} levels")
        if (leaf := LEAVES_BY_TAG.get(tag)) is not None:
            value = leaf.made(self.take())
        elif (read := _READERS.get(tag)) is not None:
            value = read(self)
        else:
            raise Malformed(f"unknown tag {tag!r}")
        self._depth -= 1
        return value

    def items(self) -> list[Any]:
        return [self.take() for _ in range(self.count())]

    def pairs(self) -> list[tuple[Any, Any]]:
        return [(self.take(), self.take()) for _ in range(self.count(2))]

    def packed(self) -> list[Any]:
        kind = str(self.bytes(1), "ascii")
        if kind not in "dq":
            raise Malformed(f"numbers of kind {kind!r}")
        numbers = array(kind, bytes(self.bytes(8 * self.count(8))))
        if sys.byteorder == "little":
            numbers.byteswap()
        return numbers.tolist()

    def factory(self) -> Callable[[], Any] | None:
        name = self.text()
        return _FACTORIES[name] if name else None

    def found(self) -> tuple[Any, list[str]]:
        """The class of a value, and the names of its fields."""
        number: int = _LENGTH.unpack(self.bytes(_LENGTH.size))[0]
        if number == len(self._classes):
            module, qualified, *names = self.take()
            found = _find(module, qualified)
            if not isinstance(found, type):
                raise Malformed(f"{module}.{qualified} is no class that is loaded here")
            self._classes.append((found, names))
        return self._classes[number]

    def enum(self) -> Any:
        kind, _ = self.found()
        if not issubclass(kind, Enum):
            raise Malformed(f"{kind!r} is no enum")
        return kind.__members__[self.take()]

    def dataclass(self) -> Any:
        kind, names = self.found()
        if not is_dataclass(kind) or [f.name for f in fields(kind)] != names:
            raise Malformed(f"{kind!r} is no dataclass with the fields {names}")
        made = object.__new__(cast("type[Any]", kind))
        for name in names:
            object.__setattr__(made, name, self.take())
        return made

    def named_tuple(self) -> Any:
        kind, names = self.found()
        if kind.__base__ is not tuple or list(getattr(kind, "_fields", ())) != names:
            raise Malformed(f"{kind!r} is no named tuple of {names}")
        return tuple.__new__(kind, [self.take() for _ in names])

    def function(self) -> Any:
        found = _find(self.text(), self.text())
        if not (isinstance(found, FunctionType) and _is_known(found)):
            raise Malformed(f"{found!r} is no function that may travel")
        return found


def _find(module: str, qualified: str) -> Any:
    """What a loaded module has under this name; None: nothing. Imports nothing, and calls nothing."""
    found: Any = sys.modules.get(module)
    for name in qualified.split("."):
        if not isinstance(found, ModuleType | type):
            return None
        found = vars(found).get(name)
        found = found.__func__ if isinstance(found, staticmethod) else found
    return found


def _is_known(function: FunctionType) -> bool:
    module = function.__module__ or ""
    return module.split(".")[0] in _FUNCTIONS_OF and _find(module, function.__qualname__) is function


def _leaf_of(kind: type) -> Any:
    """The leaf of a subclass whose instances are leaves too: numpy's numbers, paths."""
    return next((leaf for leaf in LEAVES.values() if leaf.subclasses and issubclass(kind, leaf.subclasses)), None)


def _name_of(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _int(value: int) -> bytes:
    if value in _INT64:
        return b"i" + _INT.pack(value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)
    return b"I" + _LENGTH.pack(len(raw)) + raw


def _str(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogatepass")
    return b"s" + _LENGTH.pack(len(raw)) + raw


_SIMPLE: Mapping[type, Callable[[Any], bytes]] = {
    type(None): lambda _: b"N",
    bool: lambda value: b"T" if value else b"F",
    int: _int,
    float: lambda value: b"d" + _FLOAT.pack(value),
    complex: lambda value: b"c" + _COMPLEX.pack(value.real, value.imag),
    str: _str,
    bytes: lambda value: b"b" + _LENGTH.pack(len(value)) + value,
    bytearray: lambda value: b"B" + _LENGTH.pack(len(value)) + value,
}


def _put_defaultdict(writer: _Writer, value: defaultdict[Any, Any]) -> None:
    name = getattr(value.default_factory, "__name__", "") if value.default_factory is not None else ""
    if value.default_factory is not _FACTORIES.get(name):
        raise writer.refused(f"defaultdict of {value.default_factory!r}")
    writer.out += b"D"
    writer.text(name)
    writer.pairs(b"m", value)


def _put_deque(writer: _Writer, value: deque[Any]) -> None:
    writer.out += b"q"
    writer.put(value.maxlen)
    writer.items(b"l", value, len(value))


_CONTAINERS: Mapping[type, Callable[[_Writer, Any], None]] = {
    list: lambda writer, value: writer.sequence(b"l", b"P", value),
    tuple: lambda writer, value: writer.sequence(b"t", b"p", value),
    set: lambda writer, value: writer.items(b"S", value, len(value)),
    frozenset: lambda writer, value: writer.items(b"Z", value, len(value)),
    dict: lambda writer, value: writer.pairs(b"m", value),
    OrderedDict: lambda writer, value: writer.pairs(b"o", value),
    Counter: lambda writer, value: writer.pairs(b"C", value),
    defaultdict: _put_defaultdict,
    deque: _put_deque,
}

_READERS: Mapping[bytes, Callable[[Reader], Any]] = {
    b"N": lambda _: None,
    b"T": lambda _: True,
    b"F": lambda _: False,
    b"i": lambda r: _INT.unpack(r.bytes(8))[0],
    b"I": lambda r: int.from_bytes(r.bytes(r.count()), "big", signed=True),
    b"d": lambda r: _FLOAT.unpack(r.bytes(8))[0],
    b"c": lambda r: complex(*_COMPLEX.unpack(r.bytes(16))),
    b"s": Reader.text,
    b"b": lambda r: bytes(r.bytes(r.count())),
    b"B": lambda r: bytearray(r.bytes(r.count())),
    b"l": Reader.items,
    b"t": lambda r: tuple(r.items()),
    b"P": Reader.packed,
    b"p": lambda r: tuple(r.packed()),
    b"S": lambda r: set(r.items()),
    b"Z": lambda r: frozenset(r.items()),
    b"m": lambda r: dict(r.pairs()),
    b"o": lambda r: OrderedDict(r.pairs()),
    b"C": lambda r: Counter(dict(r.pairs())),
    b"D": lambda r: defaultdict(r.factory(), r.take()),
    b"q": lambda r: deque(maxlen=r.take(), iterable=r.take()),
    b"e": Reader.enum,
    b"k": Reader.dataclass,
    b"n": Reader.named_tuple,
    b"h": Reader.function,
}
