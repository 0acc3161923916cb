"""Servers of object stores on loopback, each with an empty bucket: a real S3 server, and Microsoft's emulator of its
blob storage."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from email.utils import formatdate
from pathlib import Path

import pytest

from bench_harness.processes import free_ports
from conditions import eventually

CACHE = Path(os.environ.get("ELASTRAIN_CACHE", Path.home() / ".cache/elastrain")) / "bin"
SECRET = base64.b64encode(b"a key of the tests").decode()


class ObjectServer:
    """One server over ``folder``; ``environment`` is what a job's container would have."""

    program: str
    built_by: str
    url: str
    ends_by = signal.SIGKILL

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (self.port,) = free_ports(1)

    @property
    def environment(self) -> dict[str, str]:
        raise NotImplementedError

    def command(self) -> list[str]:
        raise NotImplementedError

    def make_bucket(self) -> None:
        """Once, on the running server."""

    def start(self) -> None:
        log = (self.folder / "server.log").open("ab")
        with log:
            own = {**os.environ, **self.variables()}
            self.process = subprocess.Popen(self.command(), env=own, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        eventually(self.answers, what=f"{self.program} answers", within=60)

    def variables(self) -> dict[str, str]:
        """Of the server's process."""
        return {}

    def answers(self) -> bool:
        assert self.process.poll() is None, (self.folder / "server.log").read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=2):
                return True
        except urllib.error.HTTPError:
            return True
        except OSError:
            return False

    def stop(self) -> None:
        self.process.send_signal(self.ends_by)
        self.process.wait(30)

    @classmethod
    def require(cls) -> None:
        """Skips the test if the program is not built."""
        if not (CACHE / cls.program).exists():
            pytest.skip(f"there is no {cls.program}: {cls.built_by} builds it")


class S3(ObjectServer):
    program, built_by, url = "versitygw", "scripts/get-s3", "s3://bucket/job"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "data/bucket").mkdir(parents=True)

    @property
    def environment(self) -> dict[str, str]:
        own = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
        return {**own, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}

    def variables(self) -> dict[str, str]:
        return {"ROOT_ACCESS_KEY": "test", "ROOT_SECRET_KEY": SECRET}

    def command(self) -> list[str]:
        return [str(CACHE / self.program), "--port", f"127.0.0.1:{self.port}", "posix", str(self.folder / "data")]

    def parts(self) -> list[Path]:
        """Parts of uploads that are not complete."""
        return [p for p in (self.folder / "data/bucket/.sgwtmp/multipart").rglob("*") if p.is_file()]


class Azure(ObjectServer):
    """Azurite."""

    program, built_by, url = "azurite", "scripts/get-azurite", "az://bucket/job"
    ACCOUNT = "account"
    ends_by = signal.SIGTERM  # it writes its index every few seconds, and at its end

    @property
    def environment(self) -> dict[str, str]:
        own = {"AZURE_STORAGE_ACCOUNT_NAME": self.ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": SECRET}
        return {**own, "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{self.port}/{self.ACCOUNT}"}

    def variables(self) -> dict[str, str]:
        return {"AZURITE_ACCOUNTS": f"{self.ACCOUNT}:{SECRET}"}

    def command(self) -> list[str]:
        node = shutil.which("node") or "node"
        script = CACHE / "azurite/node_modules/azurite/dist/src/blob/main.js"
        flags = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", str(self.folder)]
        return [node, str(script), *flags, "--skipApiVersionCheck", "--disableTelemetry"]

    def make_bucket(self) -> None:
        dated = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        lines = ["PUT", *[""] * 11, *(f"{k}:{v}" for k, v in dated.items())]
        signed = "\n".join([*lines, f"/{self.ACCOUNT}/{self.ACCOUNT}/bucket", "restype:container"])
        mac = hmac.new(base64.b64decode(SECRET), signed.encode(), hashlib.sha256).digest()
        key = f"SharedKey {self.ACCOUNT}:{base64.b64encode(mac).decode()}"
        url = f"http://127.0.0.1:{self.port}/{self.ACCOUNT}/bucket?restype=container"
        request = urllib.request.Request(url, method="PUT", headers={**dated, "Authorization": key})
        urllib.request.urlopen(request, timeout=10).close()
