"""As of :mod:`elastrain_cli.client`: the client for jobs on a cluster that other programs import."""

from elastrain_cli.client import *  # noqa: F403 - one list of names
