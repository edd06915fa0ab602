"""A real PostgreSQL server on this machine, from Debian's package; tests skip with the reason where there is none."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millstream.testing.node_process import free_ports
from tests.waiting import until
from tools.apache_kafka import ToolchainMissingError
from tools.install_test_clients import debian_package

_USER = "postgres"


def _programs() -> Path:
    """The directory with initdb and postgres. The package puts only the client into the path."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not places:
        debian_package("postgresql", "psql")
        places = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not places:
        raise ToolchainMissingError("the package postgresql has no server")
    return places[-1]


@contextmanager
def postgresql() -> Iterator[str]:
    """The address of an empty database. ToolchainMissingError says what is missing."""
    programs = _programs()
    # The server refuses to run as root, and its user cannot look into directories of root.
    user = _USER if os.geteuid() == 0 else None
    directory = Path(tempfile.mkdtemp(prefix="millstream-postgresql-"))
    if user is not None:
        shutil.chown(directory, user)
    data, port = directory / "data", free_ports(1)[0]
    try:
        subprocess.run(
            [str(programs / "initdb"), "--pgdata", str(data), "--username", _USER, "--auth", "trust", "--no-sync"],
            check=True,
            capture_output=True,
            user=user,
            cwd=directory,
        )
        server = subprocess.Popen(
            [programs / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", directory, "-F"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=user,
            cwd=directory,
        )
        try:
            ready = [str(programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(port)]
            until(lambda: subprocess.run(ready, capture_output=True).returncode == 0, "PostgreSQL responds")
            yield f"127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # does not wait for clients, as SIGTERM would
            server.wait()
    finally:
        shutil.rmtree(directory)
