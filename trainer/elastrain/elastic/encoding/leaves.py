"""The values without parts of their own that :mod:`.values` knows beside Python's plain ones.

Each is encoded as plain values, and made of them again by a constructor that runs no code of the value.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import math
import pathlib
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_NUMPY_DTYPE = re.compile(r"[<>|=][?biufcSUmM][0-9]*(\[[0-9]*[a-zA-Z]+\])?")
_DTYPES = {str(d): d for d in vars(torch).values() if isinstance(d, torch.dtype)}
_LAYOUTS = {str(x): x for x in vars(torch).values() if isinstance(x, torch.layout)}
_FORMATS = {str(x): x for x in vars(torch).values() if isinstance(x, torch.memory_format)}
_PATHS = {p.__name__: p for p in (pathlib.PurePosixPath, pathlib.PureWindowsPath)}


class Malformed(ValueError):
    """Bytes from another rank are no encoded value."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """How values of one type travel."""

    tag: bytes
    parts: Callable[[Any], Any]
    """Plain values. Raises ``TypeError`` for a value that has no encoding."""
    made: Callable[[Any], Any]
    """The value of these parts. Raises any error if there is none."""
    subclasses: type | tuple[type, ...] = ()
    """Of which values are encoded in the same way."""


def _tensor_parts(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], tuple[int, ...], str, bytes]:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise TypeError(f"of {tensor.dtype} with layout {tensor.layout}")
    plain = tensor.detach().resolve_conj().resolve_neg()
    if not (plain.numel() and is_dense(plain)):
        plain = plain.contiguous()
    try:
        raw = raw_bytes(plain).cpu().numpy().tobytes() if plain.numel() else b""
    except RuntimeError as e:  # its elements are no whole bytes
        raise TypeError(f"of {tensor.dtype}") from e
    return str(plain.dtype), tuple(plain.shape), plain.stride(), plain.device.type, raw


def _tensor(parts: tuple[str, tuple[int, ...], tuple[int, ...], str, bytes]) -> torch.Tensor:
    name, shape, stride, device, raw = parts
    described = torch.empty_strided(shape, stride, dtype=_DTYPES[name], device="meta")
    if described.nbytes != len(raw) or (raw and not is_dense(described)):
        raise Malformed(f"a tensor of {name} with shape {shape} and strides {stride} has not {len(raw)} bytes")
    made = torch.empty_strided(shape, stride, dtype=_DTYPES[name])
    if raw:
        raw_bytes(made).copy_(torch.frombuffer(bytearray(raw), dtype=torch.uint8))
    return made.to(device) if device == "cuda" and torch.cuda.is_available() else made


def _array_parts(array: Any) -> tuple[str, tuple[int, ...], Any, bytes]:
    if type(array) is not np.ndarray and not isinstance(array, np.generic):
        raise TypeError("a subclass of numpy.ndarray")
    plain = np.asarray(array)
    if not _NUMPY_DTYPE.fullmatch(plain.dtype.str):
        raise TypeError(f"of {plain.dtype}")
    order: Any = "F" if plain.flags.f_contiguous and not plain.flags.c_contiguous else "C"
    return plain.dtype.str, plain.shape, order, plain.tobytes(order)


def _array(parts: tuple[str, tuple[int, ...], Any, bytes]) -> np.ndarray[Any, Any]:
    name, shape, order, raw = parts
    if not _NUMPY_DTYPE.fullmatch(name) or order not in ("C", "F"):
        raise Malformed(f"an array of {name} in order {order}")
    dtype = np.dtype(name)
    if any(n < 0 for n in shape) or math.prod(shape) * dtype.itemsize != len(raw):
        raise Malformed(f"an array of {name} with shape {shape} has not {len(raw)} bytes")
    if not raw:
        return np.empty(shape, dtype, order=order)
    flat: np.ndarray[Any, Any] = np.frombuffer(bytearray(raw), dtype)
    return flat.reshape(shape, order=order)


def _number(parts: tuple[str, tuple[int, ...], Any, bytes]) -> Any:
    return _array(parts)[()]


def _numpy_dtype(dtype: np.dtype[Any]) -> str:
    if not _NUMPY_DTYPE.fullmatch(dtype.str):
        raise TypeError("of objects or fields")
    return dtype.str


def _made_dtype(name: str) -> np.dtype[Any]:
    if not _NUMPY_DTYPE.fullmatch(name):
        raise Malformed(f"the dtype {name}")
    return np.dtype(name)


def _path_parts(path: pathlib.PurePath) -> tuple[str, str, bool]:
    name = next(n for n, kind in _PATHS.items() if isinstance(path, kind))
    return name, str(path), isinstance(path, pathlib.Path)


def _path(parts: tuple[str, str, bool]) -> pathlib.PurePath:
    name, path, is_concrete = parts
    pure = _PATHS[name](path)
    return pathlib.Path(pure) if is_concrete else pure


def _moment_parts(moment: datetime.datetime | datetime.time) -> str:
    if moment.tzinfo is not None and type(moment.tzinfo) is not datetime.timezone:
        raise TypeError(f"of the zone {moment.tzinfo!r}")
    return moment.isoformat()


def _device(name: str) -> torch.device:
    return torch.device(name)


LEAVES: Mapping[type, Leaf] = {
    torch.Tensor: Leaf(b"X", _tensor_parts, _tensor),
    torch.Size: Leaf(b"z", tuple, torch.Size),
    torch.dtype: Leaf(b"y", str, _DTYPES.__getitem__),
    torch.device: Leaf(b"v", str, _device),
    torch.layout: Leaf(b"w", str, _LAYOUTS.__getitem__),
    torch.memory_format: Leaf(b"W", str, _FORMATS.__getitem__),
    np.ndarray: Leaf(b"a", _array_parts, _array),
    np.generic: Leaf(b"g", _array_parts, _number, subclasses=np.generic),
    np.dtype: Leaf(b"G", _numpy_dtype, _made_dtype, subclasses=np.dtype),
    range: Leaf(b"r", lambda r: (r.start, r.stop, r.step), lambda parts: range(*parts)),
    slice: Leaf(b"L", lambda s: (s.start, s.stop, s.step), lambda parts: slice(*parts)),
    datetime.datetime: Leaf(b"u", _moment_parts, datetime.datetime.fromisoformat),
    datetime.date: Leaf(b"U", datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: Leaf(b"V", _moment_parts, datetime.time.fromisoformat),
    datetime.timedelta: Leaf(
        b"x", lambda d: (d.days, d.seconds, d.microseconds), lambda parts: datetime.timedelta(*parts)
    ),
    decimal.Decimal: Leaf(b"E", str, decimal.Decimal),
    fractions.Fraction: Leaf(
        b"R", lambda f: (f.numerator, f.denominator), lambda parts: fractions.Fraction(*map(int, parts))
    ),
    uuid.UUID: Leaf(b"Q", lambda u: u.bytes, lambda raw: uuid.UUID(bytes=raw)),
    pathlib.PurePath: Leaf(b"A", _path_parts, _path, subclasses=pathlib.PurePath),
}
LEAVES_BY_TAG = {leaf.tag: leaf for leaf in LEAVES.values()}


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill one run of memory, in any order of the dimensions."""
    run = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != run:
                return False
            run *= size
    return True


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as a flat uint8 view, in the order of its strides (a copy if it has gaps)."""
    if not is_dense(tensor):
        tensor = tensor.contiguous()
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
