"""An S3 server on loopback, in a process of its own: moto's, or MinIO where `CLARION_TEST_MINIO` names its program.

delta-rs waits for answers with Python's lock held, so a server in the test's own process would never give one.
"""

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow.fs as fs

from tests.waiting import wait_for

KEY, SECRET = "clarion-test", "clarion-secret"


class Store:
    def __init__(self, port: int) -> None:
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }
        self.options = tuple(sorted({"aws_allow_http": "true", **self._lower()}.items()))
        self.files = fs.S3FileSystem(
            access_key=KEY,
            secret_key=SECRET,
            region="us-east-1",
            endpoint_override=f"http://127.0.0.1:{port}",
            allow_bucket_creation=True,
        )

    def bucket(self) -> str:
        """A new one, for one test."""
        name = f"lake-{uuid.uuid4().hex[:12]}"
        self.files.create_dir(name)
        return f"s3://{name}"

    def _lower(self) -> dict[str, str]:
        return {name.lower(): value for name, value in self.environment.items()}


@contextmanager
def s3_server(folder: Path) -> Iterator[Store]:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (folder / "s3.log").open("wb") as log:
        process = subprocess.Popen(_command(folder, port), stdout=log, stderr=log, env=_environment())
    try:
        wait_for(lambda: _answers(port, process), seconds=60, what="the S3 server")
        yield Store(port)
    finally:
        process.kill()
        process.wait()


def is_minio() -> bool:
    return "CLARION_TEST_MINIO" in os.environ


def _command(folder: Path, port: int) -> list[str]:
    if is_minio():
        return [os.environ["CLARION_TEST_MINIO"], "server", "--address", f"127.0.0.1:{port}", str(folder / "minio")]
    return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]


def _environment() -> dict[str, str]:
    return {**os.environ, "MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_BROWSER": "off"}


def _answers(port: int, process: subprocess.Popen) -> bool:
    assert process.poll() is None, "the S3 server has ended"
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
