"""Writes an image of the Docker engine as an OCI archive, the same for the same content. For `ctr images import`,
`skopeo copy oci-archive:`, `podman load` and `docker load`.

    docker save IMAGE | oci_archive.py --name elastrain/operator --tag 0.1.0 --created SECONDS --base-created SECONDS
        --base-layers N --cache FOLDER FILE

A build gives each file that it writes the present time. Here a file of our layers that is not older than the base image
gets one fixed date, so that a layer without changes keeps its digest from release to release. Python's compiled files
name the date of their source: the Dockerfile sets that date before it compiles. Layers of the base image are copied as
they are.
Prints the digest of the manifest, by which a registry knows the image.
"""

from __future__ import annotations

import argparse
import hashlib
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


def normalized(source: IO[bytes], target: IO[bytes], since: int) -> None:
    """Copy a layer: the same files in the same order, and no trace of when or by whom it was built, ``since`` then."""
    with (
        tarfile.open(fileobj=source, mode="r|*") as old,
        tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as new,
    ):
        for entry in old:
            entry.mtime = DATE if entry.mtime >= since else int(entry.mtime)
            entry.uname = entry.gname = ""
            kept = {k: v for k, v in entry.pax_headers.items() if k.startswith("SCHILY.xattr.")}
            entry.pax_headers = dict(sorted(kept.items()))
            new.addfile(entry, old.extractfile(entry) if entry.isreg() else None)


class Blobs:
    """The folder blobs/sha256 of an OCI layout."""

    def __init__(self, folder: Path, cache: Path) -> None:
        """``cache``: layers that were compressed before; most of an image is the same in each release."""
        self._folder, self._cache = folder, cache
        folder.mkdir(parents=True)
        cache.mkdir(parents=True, exist_ok=True)

    def json(self, media_type: str, content: Json) -> Json:
        """Store a document; its descriptor."""
        data = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        digest = hashlib.sha256(data).hexdigest()
        (self._folder / digest).write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    def layer(self, write: Callable[[IO[bytes]], None]) -> tuple[str, Json]:
        """Store what ``write`` writes, compressed; the digest of the uncompressed layer, and the descriptor."""
        plain = self._folder / "plain"
        with plain.open("wb") as file:
            write(file)
        diff_id = _digest(plain)
        packed = self._cache / f"{diff_id}-{zlib.ZLIB_RUNTIME_VERSION}.gz"
        if not packed.exists():
            _compress(plain, packed)
        plain.unlink()
        digest = _digest(packed)
        shutil.copyfile(packed, self._folder / digest)
        media_type = "application/vnd.oci.image.layer.v1.tar+gzip"
        descriptor = {"mediaType": media_type, "digest": f"sha256:{digest}", "size": packed.stat().st_size}
        return f"sha256:{diff_id}", descriptor


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _compress(plain: Path, packed: Path) -> None:
    """With no date in the header. ``packed`` appears when it is whole."""
    pack = zlib.compressobj(6, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    with plain.open("rb") as source, tempfile.NamedTemporaryFile(dir=packed.parent, delete=False) as target:
        while block := source.read(BLOCK):
            target.write(pack.compress(block))
        target.write(pack.flush())
    Path(target.name).rename(packed)


def configuration(old: Json, layers: list[str], created: int) -> Json:
    """What a container is started with. The history is left out: it names the settings of the machine that built it."""
    runs = {k: v for k, v in old["config"].items() if v and k in {
        "User", "ExposedPorts", "Env", "Entrypoint", "Cmd", "Volumes", "WorkingDir", "Labels", "StopSignal",
    }}  # fmt: skip
    platform = {k: old[k] for k in ("os", "architecture", "variant") if old.get(k)}
    date = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**platform, "created": date, "config": runs, "rootfs": {"type": "layers", "diff_ids": layers}}


@dataclass(frozen=True)
class Naming:
    """What an archive says beside its files."""

    name: str
    """For `docker load`."""
    tag: str
    created: int
    """The commit's time, in seconds."""
    base_created: int
    """That of the base image."""
    base_layers: int
    """Number of its layers."""
    cache: Path
    """Folder of compressed layers."""


def convert(saved: tarfile.TarFile, layout: Path, naming: Naming) -> str:
    """Write the OCI layout of the image in ``saved`` into the empty folder ``layout``; the digest of its manifest."""
    blobs = Blobs(layout / "blobs/sha256", naming.cache)
    (image,) = json.load(_member(saved, "manifest.json"))
    old = json.load(_member(saved, image["Config"]))
    layers, ids = [], []
    for number, path in enumerate(image["Layers"]):
        source = _member(saved, path)
        ours = number >= naming.base_layers

        def write(target: IO[bytes], source: IO[bytes] = source, ours: bool = ours) -> None:
            if ours:
                normalized(source, target, naming.base_created)
            else:
                shutil.copyfileobj(source, target, BLOCK)

        diff_id, descriptor = blobs.layer(write)
        ids.append(diff_id)
        layers.append(descriptor)
    made = configuration(old, ids, naming.created)
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
    parser.add_argument("--created", type=int, required=True, help="the commit's time")
    parser.add_argument("--base-created", type=int, required=True, help="the base image's time")
    parser.add_argument("--base-layers", type=int, required=True, help="number of layers of the base image")
    parser.add_argument("--cache", type=Path, required=True, help="a folder for compressed layers")
    options = parser.parse_args()
    given = (options.name, options.tag, options.created, options.base_created, options.base_layers, options.cache)
    naming = Naming(*given)
    with tempfile.TemporaryDirectory(dir=options.archive.parent) as folder:
        saved, layout = Path(folder, "saved.tar"), Path(folder, "layout")
        with saved.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, BLOCK)
        layout.mkdir()
        with tarfile.open(saved, "r:") as tar:
            digest = convert(tar, layout, naming)
        pack(layout, options.archive)
    print(digest)  # noqa: T201 - its result


if __name__ == "__main__":
    main()
