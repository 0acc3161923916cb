"""``elastrain`` and ``python -m elastrain``. A worker's agent starts without the libraries of the command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the ``elastrain`` script."""
    if sys.argv[1:3] == ["agent", "--"] and sys.argv[3:]:
        from elastrain.agent.process.start import run_agent

        sys.exit(run_agent(sys.argv[3:]))
    try:
        from elastrain_cli.main import main as command_line
    except KeyboardInterrupt:  # the imports take long enough for a Ctrl-C
        sys.exit(130)
    command_line()


if __name__ == "__main__":
    main()
