"""The example of docs/tables.md, as it is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.testing import EmbeddedBroker
from tests.repository import REPOSITORY
from tests.waiting import LONG_TIMEOUT_SECONDS


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_example_runs(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "tables.md").read_text()
    (example,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    lines = [line.removeprefix("$ ") for line in example.splitlines()]
    assert len(lines) == 6
    with EmbeddedBroker() as broker:
        variables = {
            **os.environ,
            "MILLSTREAM_BOOTSTRAP": broker.bootstrap_servers,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        outputs = []
        for line in lines:
            done = subprocess.run(
                ["bash", "-c", line],
                env=variables,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=LONG_TIMEOUT_SECONDS,
            )
            assert done.returncode == 0, (line, done.stdout, done.stderr)
            outputs.append(done.stdout)
    assert "orders" in outputs[-2] and " 100 " in outputs[-2]
    assert "every record of orders is there once, 100 rows" in outputs[-1]
