"""The site: it builds without a warning, and its pages load nothing from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOADS = re.compile(r"""<(?:script|img|link|iframe|source|use)\b[^>]*?\b(?:src|href)=["']?(https?:)?//([^"'\s>]+)""")
"""What a browser fetches by itself; links that people follow are not among it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, in a separate folder."""
    home = tmp_path_factory.mktemp("site")
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(home)],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return home


def test_every_page_is_built(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix("")
        built = site / (name.parent if name.name == "index" else name) / "index.html"
        assert built.is_file(), f"{page.relative_to(ROOT)} is not on the site"


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    found = {
        str(page.relative_to(site)): m[2] for page in site.rglob("*.html") for m in LOADS.finditer(page.read_text())
    }
    assert not found


def test_included_texts_are_on_their_pages(site: Path) -> None:
    for page, words in {
        "project/changelog": "Keep a Changelog",
        "project/licences": "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION",
        "reference/values": "watchNamespaces",
        "start": "ElasticTrainingJob",
    }.items():
        text = (site / page / "index.html").read_text()
        assert words in text
        assert "--8&lt;--" not in text and "--8<--" not in text


def test_the_pages_can_be_searched(site: Path) -> None:
    (index,) = site.rglob("search*.json")
    assert "lastFailure" in index.read_text()
