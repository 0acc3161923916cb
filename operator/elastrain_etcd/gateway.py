"""``python -m elastrain_etcd.gateway``: runs the HAProxy before etcd, and watches over etcd's alarms.

HAProxy passes on the calls that members and the operator make, each with a token (``charts/elastrain/files``). etcd
itself serves some calls without any credentials, such as raising an alarm that stops all writes. This process gives
HAProxy a renewed certificate, by the reload of its master, which cuts no connection.
"""

from __future__ import annotations

import signal
import subprocess
import threading
from pathlib import Path
from typing import Annotated

import structlog
import typer

from elastrain.etcd import EtcdClient, EtcdConfig, tls
from elastrain_etcd.alarms import Alarms
from elastrain_operator import logs

LOOK_SECONDS = 5.0
"""Between two looks at the files of certificates and at etcd's alarms."""
END_SECONDS = 5.0
"""For which HAProxy may finish after SIGTERM."""

log = structlog.get_logger(__name__)
cli = typer.Typer(add_completion=False)


@cli.command()
def main(
    *,
    haproxy: Annotated[str, typer.Option(help="The program.")] = "haproxy",
    configuration: Annotated[Path, typer.Option(help="Its configuration.")],
    endpoint: Annotated[str, typer.Option(help="host:port of etcd, inside its pod.")],
    ca: Annotated[Path, typer.Option(help="CA certificate (PEM).")],
    certificate: Annotated[Path, typer.Option(help="Certificate that HAProxy presents (PEM).")],
    key: Annotated[Path, typer.Option(help="Its key (PEM).")],
    password_file: Annotated[Path, typer.Option(help="File with the password of root.")],
    quota_bytes: Annotated[int, typer.Option(help="Size of the database at which etcd refuses writes.")],
) -> None:
    """Runs the HAProxy before etcd, renews its certificate, and disarms alarms that etcd's size does not justify."""
    logs.configure(logs.level_of("info"))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    config = EtcdConfig.of(endpoint, username="root", password_file=str(password_file), ca=str(ca))
    with EtcdClient(config) as client:
        alarms = Alarms(client, quota_bytes)
        raise typer.Exit(run([haproxy, "-W", "-db", "-f", str(configuration)], (ca, certificate, key), stop, alarms))


def run(command: list[str], files: tuple[Path, Path, Path], stop: threading.Event, alarms: Alarms) -> int:
    """Until ``stop``, or until HAProxy ends. ``files``: of the CA, the certificate and its key. Returns the exit code:
    HAProxy's, or 0 after ``stop``."""
    stamp = tls.stamp(*files)
    process = subprocess.Popen(command)
    try:
        while not stop.wait(LOOK_SECONDS):
            if (code := process.poll()) is not None:
                log.error("HAProxy has ended", code=code)
                return code or 1
            if (now := tls.stamp(*files)) != stamp:
                stamp = now
                log.info("certificates were replaced: HAProxy reads them again")
                process.send_signal(signal.SIGUSR2)
            alarms.look()
        return 0
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


if __name__ == "__main__":
    cli()
