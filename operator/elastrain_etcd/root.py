"""``python -m elastrain_etcd.root``: gives etcd's user root its password, and has etcd ask for passwords.

It runs in etcd's pod, at each start, before any other client reaches etcd: an empty etcd asks for no password, and its
first client could become root. It ends once etcd asks for passwords.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import structlog
import typer

from elastrain.api.names import EXIT_INFRASTRUCTURE
from elastrain.etcd import EtcdClient, EtcdConfig, EtcdError
from elastrain_operator import logs
from elastrain_operator.users import EtcdUsers

PATIENCE = 60.0
"""Seconds of attempts. Kubernetes then starts the container again."""
RETRY_SECONDS = 0.5

log = structlog.get_logger(__name__)
cli = typer.Typer(add_completion=False)


@cli.command()
def main(
    endpoint: Annotated[str, typer.Option(help="host:port of etcd, inside its pod.")],
    ca: Annotated[str, typer.Option(help="CA certificate (PEM).")],
    password_file: Annotated[Path, typer.Option(help="File with the password of root.")],
) -> None:
    """Gives etcd's user root its password, and has etcd ask for passwords."""
    logs.configure(logs.level_of("info"))
    config = EtcdConfig.of(endpoint, username="root", password_file=str(password_file), ca=ca)
    with EtcdClient(config) as client:
        done = secure(EtcdUsers(client), password_file.read_text().rstrip("\n"))
    raise typer.Exit(0 if done else EXIT_INFRASTRUCTURE)


def secure(users: EtcdUsers, password: str, patience: float = PATIENCE) -> bool:
    """Whether etcd asks for passwords, and root's is ``password``, after at most ``patience`` seconds.

    Several members of one etcd may do this at the same time: each call may fail because another was first.
    """
    end = time.monotonic() + patience
    while True:
        try:
            if users.are_checked(password):
                return True
            users.check(password)
            log.info("authentication in etcd enabled")
        except EtcdError as error:
            why = str(error)
        else:
            continue
        if time.monotonic() >= end:
            log.error("etcd has no password for root", error=why)
            return False
        time.sleep(RETRY_SECONDS)


if __name__ == "__main__":
    cli()
