"""The numbers in binary files that a script has written; ``python -m elastrain_verify.numbers PATH...`` prints them.

A process of its own, since it imports torch and reads what the script's author may have put there; of pickles it reads
tensors and plain values only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from elastrain_verify.rank import record

TORCH = (".pt", ".pth", ".ckpt", ".bin", ".tar")


def read(path: Path) -> dict[str, Any]:
    """The tensors and floating numbers in a file, by ``file: path``; empty if it has none that can be read."""
    try:
        tree = _tree(path)
    except Exception:  # the file is of another program, or holds objects
        return {}
    found = record.leaves(f"{path.name}: ", tree)
    return {name.replace(": .", ": "): value for name, value in found if isinstance(value, (dict, float))}


def _tree(path: Path) -> Any:
    match path.suffix:
        case suffix if suffix in TORCH:
            return torch.load(path, map_location="cpu", weights_only=True)
        case ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        case ".npy" | ".npz":
            loaded = np.load(path, allow_pickle=False)
            return dict(loaded) if isinstance(loaded, Mapping) else loaded
    return None


def _main(paths: list[str]) -> Iterator[str]:
    for path in paths:
        yield json.dumps(read(Path(path)))


if __name__ == "__main__":
    sys.stdout.writelines(line + "\n" for line in _main(sys.argv[1:]))
