"""Values on their way to other ranks: equal to the bit, or refused by name; and no bytes do anything else."""

import datetime
import decimal
import enum
import fractions
import pathlib
import pickle
import random
import re
import threading
import tracemalloc
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim.swa_utils import SWALR

from elastrain.elastic.encoding import Malformed, NotEncodable, decode, encode
from elastrain.elastic.state.capture import Slot


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


class Point(NamedTuple):
    x: int
    y: Any


@dataclass
class Plain:
    a: int
    b: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        raise AssertionError("code of the value ran")


@dataclass(frozen=True, slots=True)
class Frozen:
    a: int


def plain(a: int, b: list[int]) -> Plain:
    made = object.__new__(Plain)
    made.a, made.b = a, b
    return made


VALUES = [
    None, True, False, 0, -1, 2**63, -(2**63), 2**200, -(2**200), 1.5, float("inf"), -0.0, 1 + 2j, "", "å\ud800", b"\0",
    bytearray(b"x"), [], [1, 2.5], list(range(40)), [0.5] * 40, (1, (2,)), tuple(range(40)), [2**70] * 40, [True] * 40,
    {1: "a", "b": None, (1, 2): []}, {1, 2}, frozenset({3}), OrderedDict(b=1, a=2), Counter("aab"),
    defaultdict(list, {1: [2]}), defaultdict(None, {1: 2}), deque([1, 2], maxlen=3), deque(),
    range(1, 9, 2), slice(None, 3), Colour.RED, Level.HIGH, Point(1, [2]), plain(1, [2]), Frozen(3),
    [Frozen(1), Frozen(2), Colour.RED, Frozen(3)],
    torch.Size([2, 3]), torch.bfloat16, torch.device("cpu"), torch.device("cuda", 1), torch.strided,
    torch.channels_last, np.float32(1.5), np.int64(-3), np.bool_(True), np.str_("a"), np.dtype("f4"),
    np.datetime64("2026-01-01"), datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC), datetime.date(2026, 1, 2),
    datetime.time(3, 4), datetime.timedelta(days=-1, seconds=5), decimal.Decimal("1.10"), fractions.Fraction(1, 3),
    uuid.UUID(int=5), pathlib.Path("a/b"), pathlib.PureWindowsPath("c:/x"), random.getstate(), torch.nn.functional.relu,
    Slot(torch.float32, (2,), (1,), "cpu"),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_keeps_type_and_content(value) -> None:
    again = decode(encode(value))
    assert type(again) is type(value) and again == value and repr(again) == repr(value)


DTYPES = sorted({str(d): d for d in vars(torch).values() if isinstance(d, torch.dtype)}.items())


@pytest.mark.parametrize("name", [n for n, _ in DTYPES if not re.search(r"\.q|bits|int[1-7]$", n)])
def test_a_tensor_of_any_type_keeps_its_bits(name: str) -> None:
    dtype = dict(DTYPES)[name]
    raw = torch.arange(6 * dtype.itemsize, dtype=torch.uint8)
    for tensor in (raw.view(dtype), raw.view(dtype).reshape(2, 3).t(), raw.view(dtype)[:0]):
        again = decode(encode(tensor))
        assert (again.dtype, again.shape, again.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
        assert again.contiguous().view(-1).view(torch.uint8).tolist() == (
            tensor.contiguous().view(-1).view(torch.uint8).tolist()
        )


@pytest.mark.parametrize(
    "array",
    [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.array(7, "i2"), np.empty((0, 3)),
     np.array(["a", "bc"]), np.array([1, 2], ">u4"), np.array([True])],
)  # fmt: skip
def test_an_array_keeps_type_order_and_content(array) -> None:
    again = decode(encode(array))
    assert (again.dtype.str, again.shape) == (array.dtype.str, array.shape) and (again == array).all()
    assert (again.flags.f_contiguous, again.flags.c_contiguous) == (array.flags.f_contiguous, array.flags.c_contiguous)
    assert again.flags.writeable


class Own:
    pass


def made_here() -> Any:
    @dataclass
    class Hidden:
        a: int

    return Hidden(1)


def with_more() -> Frozen:
    value = plain(1, [])
    value.c = 3  # type: ignore[attr-defined]
    return value  # type: ignore[return-value]


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (threading.Lock(), "_thread.lock"),
        (lambda: 1, "function"),
        (Own(), "Own"),
        (Own, "type"),
        (torch.nn.Linear(1, 1), "Linear"),
        (torch.nn.Parameter(torch.ones(1)), "Parameter"),
        (torch.ones(2).to_sparse(), "torch.Tensor: of torch.float32 with layout torch.sparse_coo"),
        (np.array([object()]), "numpy.ndarray: of object"),
        (np.zeros(1, "i4,f4"), "numpy.ndarray: of"),
        (made_here(), "Hidden, a class that is not found under this name"),
        (with_more(), "with the attribute 'c', which is no field"),
        (defaultdict(Own), "defaultdict of"),
        (open, "builtin_function_or_method"),
        (nested(70), "nested deeper than 64 levels"),
        (iter([]), "list_iterator"),
    ],
)
def test_what_has_no_encoding_is_refused_by_its_place_and_type(value, what: str) -> None:
    with pytest.raises(NotEncodable) as refused:
        encode({"metrics": [0, {"lock": value}]}, "the state")
    assert str(refused.value).startswith("the state['metrics'][1]['lock']") and what in str(refused.value)
    assert "cannot be sent to another worker" in str(refused.value)


def test_the_states_of_torchs_schedulers_travel() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
    s = torch.optim.lr_scheduler
    for made in (
        s.LambdaLR(optimizer, lambda _: 0.5), s.OneCycleLR(optimizer, 1.0, 10), s.MultiStepLR(optimizer, [1, 2]),
        s.ReduceLROnPlateau(optimizer), s.CyclicLR(optimizer, 0.1, 1), SWALR(optimizer, 0.1),
        s.SequentialLR(optimizer, [s.ConstantLR(optimizer), s.ExponentialLR(optimizer, 0.9)], [2]),
    ):  # fmt: skip
        assert decode(encode(made.state_dict())) == made.state_dict()


# ---- what comes from another process -------------------------------------------------------------------------------
class Exploit:
    def __reduce__(self) -> Any:
        return pytest.fail, ("a pickle ran",)


def named(tag: bytes, module: str, name: str, *rest: bytes) -> bytes:
    """A value of a class, as a hostile sender would write it."""
    return tag + bytes(8) + encode((module, name)) + b"".join(rest)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        pickle.dumps(Exploit()),
        b"?",
        b"b" + b"\xff" * 8 + b"x",
        b"l" + (2**62).to_bytes(8, "big"),
        b"Pq" + (2**61).to_bytes(8, "big"),
        encode(1) + b"x",
        encode({"a": 1}).replace(b"a", b"\xff"),
        b"l" + (1).to_bytes(8, "big") + b"m" + (1).to_bytes(8, "big") + encode([]) + encode(1),
        b"X" + encode(("torch.float32", (2**40, 2**40), (1, 1), "cpu", b"1234")),
        b"X" + encode(("torch.float32", (4,), (0,), "cpu", b"1234")),
        b"X" + encode(("torch.float32", (-1,), (1,), "cpu", b"")),
        b"X" + encode(("torch.__dict__", (1,), (1,), "cpu", b"1234")),
        b"a" + encode(("|O", (1,), "C", b"12345678")),
        b"a" + encode(("<U999999999", (1,), "C", b"1234")),
        named(b"k", "subprocess", "Popen"),
        named(b"k", "os", "system"),
        named(b"n", "builtins", "tuple"),
        named(b"e", "builtins", "int", encode("x")),
        named(b"k", "not_loaded_anywhere", "Thing"),
        b"h" + (2).to_bytes(8, "big") + b"os" + (6).to_bytes(8, "big") + b"system",
        b"h" + (5).to_bytes(8, "big") + b"torch" + (4).to_bytes(8, "big") + b"load" + b"x",
        b"D" + (4).to_bytes(8, "big") + b"open" + encode({}),
        b"l" + bytes(7) + b"\1" * 400,
        b"R" + encode((1, 0)),
    ],
)
def test_hostile_bytes_are_malformed_and_nothing_else(raw: bytes) -> None:
    with pytest.raises(Malformed):
        decode(raw)


KINDS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False) | st.fractions() | st.decimals(allow_nan=False) | st.dates() | st.uuids()
)  # fmt: skip
TREES = st.recursive(
    KINDS,
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner) | st.builds(deque,
    st.lists(inner)),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(TREES)
def test_any_tree_arrives_as_it_was_sent(tree) -> None:
    assert repr(decode(encode(tree))) == repr(tree)


@settings(max_examples=400, deadline=None)
@given(st.one_of(
    st.binary(max_size=300),
    st.tuples(st.sampled_from([encode(v) for v in VALUES]), st.integers(0, 10**6), st.integers(0, 255)).map(
        lambda c: c[0][: c[1] % len(c[0])] + bytes([c[2]]) + c[0][c[1] % len(c[0]) + 1 :]
    ),
    st.lists(st.sampled_from([b"l", b"m", b"q", b"S", b"X", b"a", b"k", b"D", b"z", b"i", b"N", b"\0" * 7, b"\1", b"\2",
                              *map(encode, VALUES)]), max_size=12).map(b"".join),
))  # fmt: skip
def test_any_bytes_are_a_value_or_malformed_within_a_bound(raw: bytes) -> None:
    """The bound: what the largest empty container has, for each byte."""
    tracemalloc.start()
    try:
        decode(raw)
    except Malformed:
        pass
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 200_000 + 800 * len(raw)
