"""Shared by all cluster commands: the selected cluster and namespace, printing, and errors as text and exit codes."""

from __future__ import annotations

import contextlib
import difflib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ParamSpec

from elastrain_cli.client import ClusterError, JobNotFound, Jobs, NotAllowed, NotConnected, NotInstalled
from elastrain_cli.cluster.compose import BadScript
from elastrain_cli.shell.answers import EXIT_NO_CLUSTER, EXIT_REFUSED, Output
from elastrain_cli.shell.printing import print_error
from elastrain_resource.manifest import InvalidManifest

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Place:
    """The selected cluster and namespace; None: the kubeconfig's default."""

    namespace: str | None = None
    context: str | None = None

    def jobs(self) -> Jobs:
        return Jobs(namespace=self.namespace, context=self.context)


class Misused(Exception):
    """The options contradict each other; the message names them."""


def answers(command: Callable[P, int]) -> Callable[P, int]:
    """``command`` with its errors printed and turned into exit codes."""

    @functools.wraps(command)
    def answering(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return command(*args, **kwargs)
        except JobNotFound as error:
            code, message = EXIT_REFUSED, f"{error}{_nearest(args)}"
        except (NotConnected, NotInstalled, NotAllowed) as error:
            code, message = EXIT_NO_CLUSTER, str(error)
        except (ClusterError, InvalidManifest, Misused, BadScript) as error:
            code, message = EXIT_REFUSED, str(error)
        print_error(message, code, next((a for a in args if isinstance(a, Output)), Output.TABLE))
        return code

    return answering


# ---- inside ----------------------------------------------------------------------------------------------------------
def _nearest(asked: Sequence[object]) -> str:
    """The job that was probably meant, as a question; empty where none is near."""
    place = next((a for a in asked if isinstance(a, Place)), None)
    name = next((a for a in asked if isinstance(a, str)), None)
    if place is None or name is None:
        return ""
    with contextlib.suppress(ClusterError), place.jobs() as jobs:
        near = difflib.get_close_matches(name, [job.name for job in jobs.list()], n=1)
        return f"; did you mean {near[0]}?" if near else ""
    return ""
