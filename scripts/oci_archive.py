"""Writes an image of the Docker engine as an OCI archive, the same for the same content. For `ctr images import`,
`skopeo copy oci-archive:`, `podman load` and `docker load`.

    docker save IMAGE | oci_archive.py --name elastrain/operator --tag 0.1.0 --epoch SECONDS --base-layers N FILE

A build gives each file that it writes the present time. Here a file of our layers that is not older than the commit
(``--epoch``) gets one fixed date, so that a layer without changes keeps its digest from release to release. Python's
compiled files name the date of their source: the Dockerfile sets that date before it compiles. Layers of the base image
are copied as they are. Prints the digest of the manifest, by which a registry knows the image.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

DATE = 315532800
"""1980-01-01, of what the build wrote: the first that zip files know. The Dockerfile has it too."""
BLOCK = 1 << 20
Json = dict[str, Any]


def normalized(source: IO[bytes], target: IO[bytes], epoch: int) -> None:
    """Copy a layer: the same files in the same order, and no trace of when or by whom it was built."""
    with (
        tarfile.open(fileobj=source, mode="r|*") as old,
        tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as new,
    ):
        for entry in old:
            entry.mtime = DATE if entry.mtime >= epoch else int(entry.mtime)
            entry.uname = entry.gname = ""
            kept = {k: v for k, v in entry.pax_headers.items() if k.startswith("SCHILY.xattr.")}
            entry.pax_headers = dict(sorted(kept.items()))
            new.addfile(entry, old.extractfile(entry) if entry.isreg() else None)


class Blobs:
    """The folder blobs/sha256 of an OCI layout."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)

    def json(self, media_type: str, content: Json) -> Json:
        """Store a document; its descriptor."""
        data = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        digest = hashlib.sha256(data).hexdigest()
        (self._folder / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    def layer(self, write: Callable[[IO[bytes]], None]) -> tuple[str, Json]:
        """Store what ``write`` writes, compressed; the digest of the uncompressed layer, and the descriptor."""
        path = self._folder / "new"
        with path.open("wb") as file:
            packed = _Packed(file)
            write(packed)
            packed.finish()
        path.rename(self._folder / packed.outer.hexdigest())
        digest, size = f"sha256:{packed.outer.hexdigest()}", packed.size
        descriptor = {"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest, "size": size}
        return f"sha256:{packed.inner.hexdigest()}", descriptor


class _Packed(io.RawIOBase):
    """Compresses what is written to it, with no date in the header, and hashes both sides."""

    def __init__(self, file: IO[bytes]) -> None:
        self.inner, self.outer, self.size = hashlib.sha256(), hashlib.sha256(), 0
        self._file, self._pack = file, zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.inner.update(data)
        self._put(self._pack.compress(data))
        return len(data)

    def finish(self) -> None:
        self._put(self._pack.flush())

    def _put(self, data: bytes) -> None:
        self.outer.update(data)
        self.size += len(data)
        self._file.write(data)


def configuration(old: Json, layers: list[str], epoch: int) -> Json:
    """What a container is started with. The history is left out: it names the settings of the machine that built it."""
    runs = {k: v for k, v in old["config"].items() if v and k in {
        "User", "ExposedPorts", "Env", "Entrypoint", "Cmd", "Volumes", "WorkingDir", "Labels", "StopSignal",
    }}  # fmt: skip
    platform = {k: old[k] for k in ("os", "architecture", "variant") if old.get(k)}
    created = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**platform, "created": created, "config": runs, "rootfs": {"type": "layers", "diff_ids": layers}}


@dataclass(frozen=True)
class Naming:
    """What an archive says beside its files."""

    name: str
    """For `docker load`."""
    tag: str
    epoch: int
    """The commit's time, in seconds."""
    base_layers: int
    """Number of layers of the base image."""


def convert(saved: tarfile.TarFile, layout: Path, naming: Naming) -> str:
    """Write the OCI layout of the image in ``saved`` into the empty folder ``layout``; the digest of its manifest."""
    blobs = Blobs(layout / "blobs/sha256")
    (image,) = json.load(_member(saved, "manifest.json"))
    old = json.load(_member(saved, image["Config"]))
    layers, ids = [], []
    for number, path in enumerate(image["Layers"]):
        source = _member(saved, path)
        ours = number >= naming.base_layers

        def write(target: IO[bytes], source: IO[bytes] = source, ours: bool = ours) -> None:
            if ours:
                normalized(source, target, naming.epoch)
            else:
                shutil.copyfileobj(source, target, BLOCK)

        diff_id, descriptor = blobs.layer(write)
        ids.append(diff_id)
        layers.append(descriptor)
    made = configuration(old, ids, naming.epoch)
    config = blobs.json("application/vnd.oci.image.config.v1+json", made)
    media_type = "application/vnd.oci.image.manifest.v1+json"
    manifest = blobs.json(media_type, {"schemaVersion": 2, "mediaType": media_type, "config": config, "layers": layers})
    platform = {k: made[k] for k in ("os", "architecture", "variant") if k in made}
    listed = {**manifest, "platform": platform, "annotations": {"org.opencontainers.image.ref.name": naming.tag}}
    documents = {
        "oci-layout": {"imageLayoutVersion": "1.0.0"},
        "index.json": {"schemaVersion": 2, "manifests": [listed]},
        "manifest.json": [  # for `docker load`
            {
                "Config": _path(config),
                "RepoTags": [f"{naming.name}:{naming.tag}"],
                "Layers": [_path(layer) for layer in layers],
            }
        ],
    }
    for file, content in documents.items():
        (layout / file).write_text(json.dumps(content, sort_keys=True))
    return str(manifest["digest"])


def pack(layout: Path, archive: Path) -> None:
    """The layout as one file."""
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(p for p in layout.rglob("*") if p.is_file()):
            entry = tarfile.TarInfo(str(path.relative_to(layout)))
            entry.size, entry.mtime, entry.mode = path.stat().st_size, DATE, 0o644
            with path.open("rb") as file:
                tar.addfile(entry, file)


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    found = tar.extractfile(name)
    assert found is not None, name
    return found


def _path(descriptor: Json) -> str:
    return "blobs/" + str(descriptor["digest"]).replace(":", "/")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path, metavar="FILE")
    parser.add_argument("--name", required=True, help="for `docker load`")
    parser.add_argument("--tag", required=True)
    parser.add_argument("--epoch", type=int, required=True, help="the commit's time")
    parser.add_argument("--base-layers", type=int, required=True, help="number of layers of the base image")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.archive.parent) as folder:
        saved, layout = Path(folder, "saved.tar"), Path(folder, "layout")
        with saved.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, BLOCK)
        layout.mkdir()
        with tarfile.open(saved, "r:") as tar:
            digest = convert(tar, layout, Naming(options.name, options.tag, options.epoch, options.base_layers))
        pack(layout, options.archive)
    print(digest)  # noqa: T201 - its result


if __name__ == "__main__":
    main()
