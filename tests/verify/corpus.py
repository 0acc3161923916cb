"""Scripts with one planted fault each, and unusual ones without a fault.

``faults/KIND-NN-NAME.py`` and ``clean/NN-NAME.py``; the first line says what is wrong, or unusual. A line ``# verify:``
has options of ``elastrain verify`` that the script needs.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
KINDS = {
    "not-repeatable": {"not repeatable"},
    "one-worker": {"ungated"},
    "two-workers": {"one rank", "of a part", "kept gradients"},
    "joiner": {"does not travel"},
    "loss": {"discarded body"},
    "resume": {"not saved"},
}
"""By the prefix of a file: the names that ``elastrain verify`` may give to the fault."""
PACKAGES = ("accelerate", "lightning.pytorch", "transformers")


@dataclass(frozen=True, slots=True)
class Script:
    """One script of the corpus."""

    path: Path

    @property
    def kind(self) -> str:
        """Of its fault; empty: it has none."""
        return next((kind for kind in KINDS if self.path.name.startswith(kind)), "")

    @property
    def about(self) -> str:
        """Its first line."""
        return self.path.read_text().splitlines()[0].strip('"')

    @property
    def form(self) -> str:
        """ "plain", "sharded" or "framework"."""
        if self.packages or "Fabric" in self.path.read_text():
            return "framework"
        return "sharded" if "fully_shard" in self.path.read_text() else "plain"

    @property
    def packages(self) -> list[str]:
        """Slow imports that a warm process does once."""
        text = self.path.read_text()
        return [name for name in PACKAGES if re.search(rf"\b{name.partition('.')[0]}\b", text)]

    @property
    def overrides(self) -> list[str]:
        """Fields of the job, as of ``--set``."""
        return [value for option, value in self._options if option == "--set"]

    @property
    def workers(self) -> int:
        return next((int(value) for option, value in self._options if option == "--workers"), 3)

    @property
    def _options(self) -> list[tuple[str, str]]:
        found = re.search(r"^# verify: (.*)$", self.path.read_text(), re.MULTILINE)
        words = shlex.split(found[1]) if found else []
        return list(zip(words[::2], words[1::2], strict=True))


FAULTS = [Script(path) for path in sorted((HERE / "faults").glob("*.py"))]
CLEAN = [Script(path) for path in sorted((HERE / "clean").glob("*.py"))]
