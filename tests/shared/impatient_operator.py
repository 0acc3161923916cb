"""``python -m elastrain_operator`` whose workers have 1 s beyond their grace period to leave: ``python
impatient_operator.py FLAGS``."""

from __future__ import annotations

from elastrain_operator.__main__ import cli
from elastrain_operator.pod import leaving


def main() -> None:
    leaving.DRAIN_EXTRA = 1.0
    cli()


if __name__ == "__main__":
    main()
