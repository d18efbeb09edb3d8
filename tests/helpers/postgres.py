"""A real PostgreSQL of this session: a cluster in a temporary folder, reached by a Unix socket only."""

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from tests.helpers.processes import wait_until

__all__ = ["PostgresServer", "programs"]

USER = "postgres"
START_S = 30.0


def programs() -> Path | None:
    """The folder of initdb and postgres, where Debian and others put it; None: there is none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    there = shutil.which("initdb")
    return Path(there).parent if there else None


class PostgresServer:
    """Made by `initdb`; the server refuses to run as root, so root gives the folder to a user without rights."""

    def __init__(self, bin_folder: Path) -> None:
        self._bin = bin_folder
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-pg-"))  # short: a socket's path has at most 107 bytes
        self._as: dict[str, Any] = {"cwd": self.folder, "stdin": subprocess.DEVNULL}
        if os.geteuid() == 0:
            user = next(pwd.getpwnam(name) for name in (USER, "nobody") if _exists(name))
            os.chown(self.folder, user.pw_uid, user.pw_gid)
            self._as |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self.data, self.log = self.folder / "data", self.folder / "log"
        subprocess.run(
            [bin_folder / "initdb", "-D", self.data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True, capture_output=True, **self._as,
        )  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count()

    @property
    def dsn(self) -> str:
        return f"host={self.folder} user={USER} dbname=postgres"

    def database(self, encoding: str = "UTF8") -> str:
        """Makes an empty database; returns its connection string."""
        name = f"t{next(self._numbers)}"
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            how = f"ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0"
            connection.execute(f'CREATE DATABASE "{name}" {how}'.encode())
        return f"host={self.folder} user={USER} dbname={name}"

    def start(self) -> None:
        command = [self._bin / "postgres", "-D", self.data, "-k", self.folder, "-c", "listen_addresses="]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, **self._as)
        wait_until(self._answers, START_S, f"PostgreSQL; see {self.log}")

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.dsn, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL to the postmaster; its children see that and end, as after a power cut."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
