"""The benchmark is no package of the distribution: its modules are found by their place."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
