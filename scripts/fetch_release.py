"""Fetch a released program by its pinned digest: ``fetch_release.py NAME FOLDER``.

``scripts/releases.tsv`` says where NAME is and which files of its archive are put into FOLDER. Exit code 3 with one
line if no release for this processor is pinned, the server does not answer within 3 s, or the digest is another one:
the caller then takes another way. ELASTRAIN_OFFLINE=1 asks no server.
"""

import hashlib
import os
import platform
import queue
import sys
import tarfile
import tempfile
import threading
import urllib.request
from pathlib import Path
from typing import Any, BinaryIO

RELEASES = Path(__file__).with_name("releases.tsv")
PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}
ANSWER_SECONDS = 3  # name, connection and first byte together
SILENCE_SECONDS = 30  # between two parts of an answer


class Unavailable(Exception):
    """The release cannot be had here; the message says why."""


def pinned(name: str, releases: Path, machine: str) -> tuple[str, str, list[str]]:
    """Digest, address and files of a release."""
    processor = PROCESSORS.get(machine, machine)
    for line in releases.read_text().splitlines():
        if not line.startswith("#") and line.split("\t")[:2] == [name, processor]:
            _, _, digest, address, files = line.split("\t")
            return digest, address, files.split()
    raise Unavailable(f"no release of {name} is pinned for {machine}")


def fetch(address: str, digest: str, into: BinaryIO) -> None:
    """Write what ``address`` serves, if it has the digest."""
    if os.environ.get("ELASTRAIN_OFFLINE") == "1":
        raise Unavailable("ELASTRAIN_OFFLINE=1")
    algorithm, _, expected = digest.partition(":")
    found = hashlib.new(algorithm)
    try:
        with _answer(address) as answer:
            while part := answer.read(1 << 20):
                found.update(part)
                into.write(part)
    except OSError as error:  # URLError, time-outs and resets are such
        raise Unavailable(f"{address}: {getattr(error, 'reason', error)}") from error
    if found.hexdigest() != expected:
        raise Unavailable(f"{address} has the digest {algorithm}:{found.hexdigest()}, not the pinned {digest}")


def _answer(address: str) -> Any:
    """The open answer. In a thread, as no time-out of a socket bounds a name server that does not answer."""
    box: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask() -> None:
        try:
            box.put(urllib.request.urlopen(address, timeout=SILENCE_SECONDS))  # noqa: S310 - an address of our own list
        except Exception as error:
            box.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = box.get(timeout=ANSWER_SECONDS)
    except queue.Empty:
        raise TimeoutError(f"no answer within {ANSWER_SECONDS} s") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def unpack(archive: Path, files: list[str], folder: Path) -> None:
    """The named files of the archive, by the ends of their paths, executable."""
    with tarfile.open(archive) as tar:
        members = {Path(m.name).name: m for m in tar if m.isfile() and Path(m.name).name in files}
        for name in files:
            source = tar.extractfile(members[name])
            assert source is not None
            target = folder / name
            target.write_bytes(source.read())
            target.chmod(0o755)


def main(name: str, folder: Path, releases: Path = RELEASES) -> int:
    try:
        digest, address, files = pinned(name, releases, platform.machine())
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder) as archive:
            fetch(address, digest, archive.file)
            archive.flush()
            unpack(Path(archive.name), files, folder)
    except Unavailable as error:
        print(f"elastrain: {name}: no release ({error})", file=sys.stderr)  # noqa: T201
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), Path(os.environ.get("ELASTRAIN_RELEASES", RELEASES))))
