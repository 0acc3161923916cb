"""``python -m elastrain_operator.keys``: creates the keys of the chart's etcd, and replaces them in time."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Annotated

import structlog
import typer

from elastrain.api.names import EXIT_INFRASTRUCTURE
from elastrain_operator import health, logs
from elastrain_operator.keys.keeper import LOOK, Keeper, KeySecrets, MissingSecret, Names
from elastrain_operator.kube.client import ApiError, Kube

PATIENCE = 600.0
"""Seconds of failures after which the process ends, so that its pod shows them."""
RETRY_SECONDS = 5.0

log = structlog.get_logger(__name__)
cli = typer.Typer(add_completion=False)


@cli.command()
def main(
    *,
    namespace: Annotated[str, typer.Option(help="Namespace of the Secrets and of etcd.")],
    etcd: Annotated[str, typer.Option(help="Name of the StatefulSet.")],
    authority_secret: Annotated[str, typer.Option(help="Secret with the CA. Empty: no certificates.")] = "",
    server_secret: Annotated[str, typer.Option(help="Secret with etcd's certificate and the CA to trust.")] = "",
    root_secret: Annotated[str, typer.Option(help="Secret with root's password. Empty: none.")] = "",
    hosts: Annotated[str, typer.Option(help="Names and addresses of etcd, separated by commas.")] = "",
    port: Annotated[int, typer.Option(help="Of /healthz; 0: any free one.")] = 8080,
) -> None:
    """Creates the keys of etcd in Secrets, and replaces them in time."""
    logs.configure(logs.level_of("info"))
    names = Names(etcd, authority_secret, server_secret, root_secret)
    raise typer.Exit(asyncio.run(keep(namespace, names, frozenset(filter(None, hosts.split(","))), port)))


async def keep(namespace: str, names: Names, hosts: frozenset[str], port: int) -> int:
    """Until SIGTERM. Returns the exit code."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    kube = await Kube.connect()
    try:
        async with health.serving(port, lambda: {"role": "keys"}):
            keeper = Keeper(KeySecrets(kube, namespace), names, hosts)
            return await _steps(keeper, stop)
    finally:
        await kube.close()


async def _steps(keeper: Keeper, stop: asyncio.Event) -> int:
    succeeded = time.monotonic()
    while not stop.is_set():
        try:
            seconds = await keeper.step()
            succeeded = time.monotonic()
        except (ApiError, MissingSecret, ValueError) as error:
            seconds = RETRY_SECONDS
            log.warning("keys of etcd: a step failed", error=str(error), retry_s=seconds)
            if time.monotonic() - succeeded >= PATIENCE:
                log.error("keys of etcd: no step has succeeded", seconds=PATIENCE)
                return EXIT_INFRASTRUCTURE
        try:
            await asyncio.wait_for(stop.wait(), min(seconds, LOOK) or 0.01)
        except TimeoutError:
            continue
    return 0


if __name__ == "__main__":
    cli()
