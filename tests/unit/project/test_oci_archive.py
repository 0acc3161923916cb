"""An image's archive: the same bytes for the same files, whenever and by whom they were built."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import oci_archive
import pytest
from oci_archive import DATE, Naming

COMMIT = 1_700_000_000
BASED = COMMIT - 5000


def layer(*files: tuple[str, int], owner: str = "root") -> bytes:
    """A layer of files (name, date)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, date in files:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.uname = 4, date, owner
            entry.pax_headers = {"SCHILY.xattr.security.capability": "cap", "atime": f"{date}.25"}
            tar.addfile(entry, io.BytesIO(b"text"))
        link = tarfile.TarInfo("again")
        link.type, link.linkname, link.mtime = tarfile.LNKTYPE, files[0][0], files[0][1]
        tar.addfile(link)
    return buffer.getvalue()


BASE = layer(("etc/base", BASED - 99))


def saved(*layers: bytes, container: str = "host-1") -> tarfile.TarFile:
    """As `docker save` writes it."""
    config = {
        "architecture": "amd64", "os": "linux", "created": "now", "history": [{"created_by": container}],
        "config": {"Env": ["A=b"], "User": "65532:65532", "Hostname": container, "Image": "sha256:1"},
    }  # fmt: skip
    files = {f"{n}/layer.tar": data for n, data in enumerate(layers)} | {"config.json": json.dumps(config).encode()}
    manifest = [
        {"Config": "config.json", "RepoTags": ["x:y"], "Layers": [f"{n}/layer.tar" for n in range(len(layers))]}
    ]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in {**files, "manifest.json": json.dumps(manifest).encode()}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    buffer.seek(0)
    return tarfile.open(fileobj=buffer)


def written(folder: Path, *layers: bytes, **options: Any) -> tuple[str, Path]:
    folder.mkdir()
    naming = Naming("elastrain/operator", "1.2.3", COMMIT, BASED, base_layers=1, cache=folder.parent / "cache")
    return oci_archive.convert(saved(*layers, **options), folder, naming), folder


def blob(layout: Path, digest: str) -> bytes:
    data = (layout / "blobs/sha256" / digest.removeprefix("sha256:")).read_bytes()
    assert digest == "sha256:" + hashlib.sha256(data).hexdigest(), "a blob has the name of its content"
    return data


def test_a_later_build_of_the_same_files_has_the_same_digest(tmp_path: Path) -> None:
    one, first = written(tmp_path / "a", BASE, layer(("app", BASED + 10)), container="host-1")
    two, second = written(tmp_path / "b", BASE, layer(("app", COMMIT + 5000), owner="ci"), container="host-2")
    assert one == two
    for layout in (first, second):
        oci_archive.pack(layout, layout.with_suffix(".tar"))
    assert first.with_suffix(".tar").read_bytes() == second.with_suffix(".tar").read_bytes()


@pytest.mark.parametrize(
    "other", [layer(("app", BASED - 10)), layer(("else", COMMIT + 10))], ids=["an older file", "another name"]
)
def test_other_files_have_another_digest(tmp_path: Path, other: bytes) -> None:
    one, _ = written(tmp_path / "a", BASE, layer(("app", COMMIT + 10)))
    two, _ = written(tmp_path / "b", BASE, other)
    assert one != two


def test_our_layers_have_one_date_where_the_build_wrote_and_a_base_layer_is_copied(tmp_path: Path) -> None:
    digest, layout = written(tmp_path / "a", BASE, layer(("old", BASED - 10), ("new", BASED)))
    manifest = json.loads(blob(layout, digest))
    config = json.loads(blob(layout, manifest["config"]["digest"]))
    layers = [gzip.decompress(blob(layout, found["digest"])) for found in manifest["layers"]]
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(data).hexdigest() for data in layers]
    assert layers[0] == BASE
    with tarfile.open(fileobj=io.BytesIO(layers[1])) as tar:
        assert {e.name: e.mtime for e in tar} == {"old": BASED - 10, "new": DATE, "again": BASED - 10}
        assert {e.uname for e in tar} == {""}
        assert tar.getmember("new").pax_headers == {"SCHILY.xattr.security.capability": "cap"}
        assert tar.extractfile("again").read() == b"text"  # type: ignore[union-attr]


def test_a_layer_that_was_compressed_before_is_taken_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = written(tmp_path / "a", BASE)
    monkeypatch.setattr(oci_archive, "_compress", lambda *_: pytest.fail("compressed again"))
    two, layout = written(tmp_path / "b", BASE)
    assert one == two
    (found,) = json.loads(blob(layout, two))["layers"]
    assert gzip.decompress(blob(layout, found["digest"])) == BASE


def test_what_a_container_needs_is_kept_and_the_machine_that_built_it_is_not_named(tmp_path: Path) -> None:
    digest, layout = written(tmp_path / "a", BASE)
    config = json.loads(blob(layout, json.loads(blob(layout, digest))["config"]["digest"]))
    assert config["config"] == {"Env": ["A=b"], "User": "65532:65532"}
    assert config["created"] == "2023-11-14T22:13:20Z"
    assert "host-1" not in "".join(p.read_text(errors="replace") for p in layout.rglob("*") if p.is_file())


def test_every_tool_finds_the_image_by_its_own_index(tmp_path: Path) -> None:
    digest, layout = written(tmp_path / "a", BASE)
    (listed,) = json.loads((layout / "index.json").read_text())["manifests"]
    assert (listed["digest"], listed["annotations"]) == (digest, {"org.opencontainers.image.ref.name": "1.2.3"})
    (docker,) = json.loads((layout / "manifest.json").read_text())
    assert docker["RepoTags"] == ["elastrain/operator:1.2.3"]
    assert all((layout / path).is_file() for path in [docker["Config"], *docker["Layers"]])


def test_the_date_is_that_which_the_dockerfile_sets() -> None:
    dockerfile = (Path(__file__).parents[3] / "Dockerfile").read_text()
    assert dockerfile.count(f"touch -h -d @{DATE}") == 3
