#!/usr/bin/env python3
"""Writes trainer/elastrain/etcd/protocol.binpb: etcd's own protocol, as a compiled set of descriptors.

    .venv/bin/pip install grpcio-tools && .venv/bin/python scripts/etcd_protocol.py

The source is the Go module of etcd's API, at the version and checksum that scripts/etcd/go.sum pins. Options for other
generators (gogoproto, HTTP gateway, OpenAPI, etcd's notes on versions) are left out, and with them their imports.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc  # of this script only

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "trainer/elastrain/etcd/protocol.binpb"
MODULE = "go.etcd.io/etcd/api/v3"
SOURCES = ("mvccpb/kv.proto", "authpb/auth.proto", "etcdserverpb/rpc.proto")
FOREIGN = re.compile(r'^import "(?!etcd/api/(mvccpb|authpb)/).*$', re.MULTILINE)
"""Imports that only options need."""
BLOCK = re.compile(r"^\s*option \([\w.]+\)[\w.]* = \{.*?^\s*\};\n|^\s*option \(.*?;\n", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"\s*\[[^\[\]]*\(\w+\.\w+\)[^\[\]]*\]")


def plain(source: str) -> str:
    """``source``, a ``.proto`` file, without the options of other generators."""
    return FIELD.sub("", BLOCK.sub("", FOREIGN.sub("", source)))


def module() -> Path:
    """The folder of etcd's API module. Raises ``CalledProcessError`` if Go cannot get it."""
    go = subprocess.check_output([ROOT / "scripts/get-go"], text=True).strip()
    named = [go, "list", "-m", "-f", "{{.Dir}}", MODULE]
    subprocess.run([go, "mod", "download", MODULE], cwd=ROOT / "scripts/etcd", check=True)
    return Path(subprocess.check_output(named, cwd=ROOT / "scripts/etcd", text=True).strip())


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary)
        for name in SOURCES:
            path = tree / "etcd/api" / name
            path.parent.mkdir(parents=True)
            path.write_text(plain((module() / name).read_text()))
        well_known = files("grpc_tools") / "_proto"
        arguments = ["protoc", f"-I{tree}", f"-I{well_known}", f"--descriptor_set_out={TARGET}", "--include_imports"]
        if protoc.main([*arguments, *(str(tree / "etcd/api" / name) for name in SOURCES)]) != 0:
            raise SystemExit("protoc failed; its message is above")


if __name__ == "__main__":
    main()
