"""A real PostgreSQL on loopback, from Debian's `postgresql`; where it is missing, tests are skipped with the reason."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Any

from tools.cluster import free_ports

from tests.waiting import wait_for

MISSING = "no PostgreSQL here: apt-get install postgresql"


def programs() -> Path | None:
    """Where the newest of the installed ones has its programs: Debian keeps them out of the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda each: int(each.parts[-3]))
    return found[-1].parent if found else None


def is_installed() -> bool:
    return programs() is not None


class PostgresProcess:
    """With a data directory of its own. Root is refused by PostgreSQL: then it runs as another user."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="clarion-postgres-"))
        (self.port,) = free_ports(1)
        self._user: dict[str, Any] = _unprivileged()
        if self._user:
            os.chown(self.folder, self._user["user"], self._user["group"])
        self._process: subprocess.Popen[bytes] | None = None
        self._run("initdb", "-D", self._data, "-U", "clarion", "-A", "trust", "--no-sync", "--no-locale", "-E", "UTF8")

    def start(self) -> None:
        bin_folder = programs()
        assert bin_folder is not None
        command = [str(bin_folder / "postgres"), "-D", self._data, "-p", str(self.port), "-h", "127.0.0.1"]
        command += ["-k", str(self.folder), "-F", "-c", "max_connections=20", "-c", "shared_buffers=16MB"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, **self._user)
        wait_for(lambda: self._answers("postgres"), what="PostgreSQL answers")

    def new_database(self) -> str:
        """Its URL, as a setting has it."""
        name = f"test_{uuid.uuid4().hex}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://clarion@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> None:
        import psycopg

        with psycopg.connect(self._place(database), autocommit=True) as connection:
            connection.execute(statement.encode())

    def stop(self) -> None:
        """Whoever is connected is thrown out."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        self._signal(signal.SIGQUIT)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def _place(self, database: str) -> str:
        return f"host=127.0.0.1 port={self.port} user=clarion dbname={database} connect_timeout=10"

    def _answers(self, database: str) -> bool:
        import psycopg

        try:
            psycopg.connect(self._place(database)).close()
        except psycopg.OperationalError:
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "log").read_text()
            return False
        return True

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            self._process = None

    def _run(self, program: str, *arguments: str) -> None:
        bin_folder = programs()
        assert bin_folder is not None
        done = subprocess.run(
            [str(bin_folder / program), *arguments], capture_output=True, text=True, cwd=self.folder, **self._user
        )
        assert done.returncode == 0, done.stderr


def _unprivileged() -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    raise AssertionError("no user to run PostgreSQL as")
