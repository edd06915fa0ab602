"""The last landed version before this one, for tests with nodes of two versions: its source, and the levels of features
that it offers.

Both versions know the same levels at times. So the previous one is started with lower levels
(`millstream.max.feature.levels`), as if it had been made before them: formats differ between the two."""

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

from tests.repository import REPOSITORY

COMMIT = "df30259c"
LEVELS = {
    "metadata.version": 14,
    "group.version": 0,
    "transaction.version": 0,
    "share.version": 0,
    "streams.version": 0,
    "eligible.leader.replicas.version": 0,
}
"""Below 15 controllers do not register, and registrations of brokers have no log directories; below 1 the state of
transactions has no tagged fields."""
SETTINGS = {"millstream.max.feature.levels": ",".join(f"{name}={level}" for name, level in LEVELS.items())}
"""Of a node of the previous version."""


class NoSourceError(Exception):
    """Git does not have the commit, for example in a shallow clone."""


def previous_source(directory: Path) -> Path:
    """Writes the source of the previous version below a directory; returns the path for Python."""
    done = subprocess.run(["git", "archive", COMMIT, "src"], cwd=REPOSITORY, capture_output=True, check=False)
    if done.returncode:
        raise NoSourceError(f"git has no commit {COMMIT} here: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(directory, filter="data")
    return directory / "src"
