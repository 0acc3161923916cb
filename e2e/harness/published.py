"""The folder of `make release`, and how a platform engineer brings its images to a cluster without a registry."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.commands import CACHE, CLUSTER, ROOT, run

REPOSITORY = "registry.example/elastrain"
"""Under this name the images lie on the nodes; nothing serves it."""
IMAGE_FILES = CACHE / f"{CLUSTER}-images"
"""Seen by all nodes as ``/images``."""
BUILD_SECONDS = 3600.0


@dataclass(frozen=True)
class Release:
    """One folder of `make release`."""

    folder: Path

    @property
    def chart(self) -> str:
        return str(self._only("elastrain-chart-*.tgz"))

    @property
    def version(self) -> str:
        return self._only("elastrain-*.whl").name.split("-")[1]

    @property
    def digests(self) -> dict[str, str]:
        """Of the images, by name."""
        return {row[0]: row[2] for row in self._images()}

    def image(self, name: str) -> str:
        """``name`` (operator, trainer) as a pod names it: by its digest alone."""
        return f"{REPOSITORY}/{name}@{self.digests[name]}"

    def load(self, name: str, *nodes: str) -> None:
        """Import the image from its archive."""
        (file,) = [row[3] for row in self._images() if row[0] == name]
        seen = IMAGE_FILES / file
        seen.unlink(missing_ok=True)
        os.link(self.folder / file, seen)
        try:
            for node in nodes:
                named = ("--base-name", f"{REPOSITORY}/{name}", "--digests", "--all-platforms")
                ctr = ("ctr", "-n", "k8s.io", "images", "import", *named, f"/images/{file}")
                run("docker", "exec", node, *ctr, timeout=300)
        finally:
            seen.unlink()

    def install_cli(self, target: Path) -> dict[str, str]:
        """Unpack the wheel for a Python that has its dependencies; the environment in which that is ``elastrain``."""
        wheel = self._only("elastrain-*.whl")
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target))
        run(*pip, str(wheel))
        return {"PYTHONPATH": str(target)}

    def _only(self, pattern: str) -> Path:
        (found,) = self.folder.glob(pattern)
        return found

    def _images(self) -> list[list[str]]:
        return [line.split("\t") for line in (self.folder / "images.tsv").read_text().splitlines()]


def checkout(folder: Path, version: str | None = None) -> Path:
    """A clone of HEAD, with our Python; of the next ``version``, if one is given."""
    run("git", "clone", "--quiet", str(ROOT), str(folder))
    (folder / ".venv").symlink_to(ROOT / ".venv")
    if version:
        run(str(folder / "scripts/set-version"), version)
        identity = ("-c", "user.name=e2e", "-c", "user.email=e2e@localhost")
        run("git", "-C", str(folder), *identity, "commit", "--quiet", "--all", "--message", f"Version {version}")
    return folder


def make(tree: Path, folder: Path) -> Release:
    """What `make release` makes of a checkout."""
    run(str(tree / "scripts/release"), str(folder), timeout=BUILD_SECONDS)
    return Release(folder)
