"""`millstream cluster upgrade` and `downgrade`, and the commands of docs/upgrades.md as they are printed there."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from millstream.testing import EmbeddedBroker
from tests.integration.cli.conftest import Run
from tests.repository import REPOSITORY

PAGE = (REPOSITORY / "docs" / "upgrades.md").read_text()


def test_upgrade_downgrade_and_the_page(offline: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shell,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    with EmbeddedBroker() as broker:
        monkeypatch.setenv("MILLSTREAM_BOOTSTRAP", broker.bootstrap_servers)

        def levels() -> dict[str, int]:
            return {row["name"]: row["level"] for row in offline("cluster", "status", "--json").json()["features"]}

        newest = levels()
        assert offline("cluster", "upgrade").out.startswith("nothing to change")
        words = ("--feature", "share.version=0", "--feature", "transaction.version=1")
        assert offline("cluster", "downgrade", *words, "--dry-run").code == 0
        assert levels() == newest
        assert offline("cluster", "downgrade", *words).code == 0
        lower = newest | {"share.version": 0, "transaction.version": 1}
        assert levels() == lower
        # A restart raises nothing.
        broker.restart()
        assert levels() == lower
        assert "cluster upgrade --dry-run" in offline("cluster", "status").out
        planned = offline("cluster", "upgrade", "--dry-run", "--json").json()
        assert planned["changes"] == [
            {"name": "share.version", "from": 0, "to": 1},
            {"name": "transaction.version", "from": 1, "to": 2},
        ]
        assert levels() == lower
        assert offline("cluster", "upgrade", "--release-version", "4.0").code == 0  # share groups came later
        assert levels() == lower | {"transaction.version": 2}
        done = subprocess.run(
            ["sh", "-ec", shell],
            env={
                **os.environ,
                "PATH": f"{REPOSITORY / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "MILLSTREAM_BOOTSTRAP": broker.bootstrap_servers,
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert levels() == newest
        for mistake, code, message in (
            (("upgrade", "--release-version", "9.9"), 2, "is not a release"),
            (("downgrade", "--feature", "metadata.version=29"), 1, "lowest safe level is 30"),
            (("downgrade", "--feature", "what.version=1"), 2, "there is no feature what.version"),
            (("downgrade", "--feature", "share.version=low"), 2, "a level is a number"),
        ):
            refused = offline("cluster", *mistake)
            assert refused.code == code and message in refused.err, refused
