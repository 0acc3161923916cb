"""What users cost an etcd: making one beside N others, and logging in at two costs of the password hash.

Users are those that the operator makes, a role with one prefix each. CPU is that of etcd's process. Prints a table, or
JSON with ``--json``. ``python bench/etcd_users.py --help`` has the options.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from elastrain.etcd import EtcdClient, EtcdConfig, EtcdUsers
from elastrain.etcd.server import EtcdServer

LOGINS = 20
PASSWORD = "p" * 43


class Server(EtcdServer):
    """With a cost of the password hash."""

    def __init__(self, bcrypt_cost: int) -> None:
        super().__init__()
        self._cost = bcrypt_cost

    def command(self) -> list[str]:
        return [*super().command(), "--bcrypt-cost", str(self._cost)]

    def cpu(self) -> float:
        """Seconds so far."""
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system


@dataclass(frozen=True)
class Made:
    """Of one user, the median of the last tenth that was made."""

    users: int
    milliseconds: float
    cpu_milliseconds: float


@dataclass(frozen=True)
class LoggedIn:
    bcrypt_cost: int
    milliseconds: float
    cpu_milliseconds: float


def make(sizes: list[int], folder: Path) -> list[Made]:
    """Make as many users as the greatest size, with a look at each size."""
    results = []
    with Server(4) as server, EtcdClient(as_root(server, folder), timeout=30) as client:
        users = EtcdUsers(client)
        users.check(PASSWORD)
        made, cpu = 0, server.cpu()
        for size in sizes:
            took: list[float] = []
            while made < size:
                if made == size - max(size // 10, 1):
                    took, cpu = [], server.cpu()
                began = time.perf_counter()
                name = f"elastrain/default/team/job-{made}/{made:036d}"
                users.ensure(name, PASSWORD, f"/elastrain/team/job-{made}/{made:036d}/")
                took.append(time.perf_counter() - began)
                made += 1
            results.append(Made(size, 1000 * statistics.median(took), 1000 * (server.cpu() - cpu) / len(took)))
    return results


def log_in(cost: int, folder: Path) -> LoggedIn:
    """The median of a few logins of root, one after the other."""
    with Server(cost) as server, EtcdClient(as_root(server, folder), timeout=30) as client:
        users = EtcdUsers(client)
        users.check(PASSWORD)
        users.are_checked(PASSWORD)
        took, cpu = [], server.cpu()
        for _ in range(LOGINS):
            began = time.perf_counter()
            users.are_checked(PASSWORD)
            took.append(time.perf_counter() - began)
        return LoggedIn(cost, 1000 * statistics.median(took), 1000 * (server.cpu() - cpu) / LOGINS)


def as_root(server: EtcdServer, folder: Path) -> EtcdConfig:
    path = folder / "password"
    path.write_text(PASSWORD)
    return EtcdConfig.of(server.endpoint, username="root", password_file=str(path))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="100,1000,3000", help="numbers of users to look at (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    sizes = sorted(int(size) for size in options.sizes.split(","))
    with tempfile.TemporaryDirectory() as folder:
        logins = [log_in(cost, Path(folder)) for cost in (4, 10)]
        made = make(sizes, Path(folder))
    if options.json:
        print(json.dumps({"logins": [asdict(r) for r in logins], "made": [asdict(r) for r in made]}, indent=1))
        return
    print("| | ms | CPU ms of etcd |\n| --- | ---: | ---: |")
    for login in logins:
        print(
            f"| a login, --bcrypt-cost={login.bcrypt_cost} | {login.milliseconds:.1f} | {login.cpu_milliseconds:.1f} |"
        )
    for one in made:
        print(f"| a user beside {one.users} | {one.milliseconds:.1f} | {one.cpu_milliseconds:.1f} |")


if __name__ == "__main__":
    main()
