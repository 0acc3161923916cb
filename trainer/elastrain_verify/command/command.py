"""The command ``elastrain verify``."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from elastrain.api import names
from elastrain_cli.etcd_server import EtcdNotFound, find_etcd
from elastrain_cli.local.command import BadOption, with_overrides
from elastrain_cli.local.spec import local_spec, worker_environment
from elastrain_cli.shell import stamp
from elastrain_resource.manifest import InvalidManifest
from elastrain_verify.command.answer import Report
from elastrain_verify.command.verification import Options, Verification
from elastrain_verify.forks import RANKS, preloaded

__all__ = ["Options", "verify"]
PROGRAMS = *RANKS, "elastrain_verify.rank.watched"
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}


def verify(options: Options) -> int:
    """Returns the exit code: 0 safe, 1 a run parts, 2 not judged."""
    report = Report(as_json=options.as_json)
    root, kept = None, options.keep
    try:
        find_etcd(options.etcd)
        job = with_overrides(options.target, options.overrides, options.arguments)
        root = _folder(options.keep)
        spec = local_spec(job, options.target.resolve().parent, None, options.environment)
        with preloaded(*PROGRAMS, environment=worker_environment(spec, os.environ, UNBUFFERED)) as start:
            verification = Verification(job, options, root, report, start=start)
            answer = verification.judge()
        kept = kept or (root if answer.exit_code else None)  # who is told of a fault looks for it there
        if answer.is_whole and not options.only:
            for script in verification.scripts():
                stamp.write(script)
    except (InvalidManifest, EtcdNotFound, BadOption, OSError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - this is the command line
        return names.EXIT_USAGE
    finally:
        if root is not None and kept is None:
            shutil.rmtree(root, ignore_errors=True)
    report.conclude(answer, kept)
    return answer.exit_code


def _folder(keep: Path | None) -> Path:
    """Where the runs take place. Raises :class:`BadOption` if ``keep`` is in use."""
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="elastrain-verify-"))
    if keep.exists() and any(keep.iterdir()):
        raise BadOption(f"--keep {keep}: must be a new or empty folder")
    keep.mkdir(parents=True, exist_ok=True)
    return keep.resolve()
