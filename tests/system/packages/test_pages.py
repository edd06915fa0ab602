"""The pages on pip, systemd and containers: their commands, run as they are written."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.testing.node_process import NodeProcess, free_port_range
from tests.repository import REPOSITORY
from tests.system.chaos import containment
from tests.system.packages.installations import run
from tests.system.packages.pages import blocks
from tests.waiting import PATIENCE_S


def contained(*arguments: str) -> str:
    if not containment.is_possible():
        pytest.skip("network namespaces cannot be made here")
    command = [*containment.unshare(), sys.executable, "-m", "tests.system.packages.pages", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_the_page_of_containers() -> None:
    output = contained("container")
    assert "partitions: 0 offline" in output
    for said in ("Created topic orders.", "\na\t1\n", "orders:0:2", "billing orders", "LeaderId:               1"):
        assert said in output, said


def test_the_page_of_systemd() -> None:
    output = contained("systemd")
    assert "\nhello\n" in output and "partitions: 0 offline" in output


def test_the_page_of_pip(tmp_path: Path) -> None:
    """The installation is in `test_wheels.py`; here `millstream` is the command of this environment."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    nodes: list[NodeProcess] = []
    output = ""
    try:
        for kind, text in blocks("deploy-pip.md"):
            if kind == "sh background":
                for number, line in enumerate(text.strip().splitlines(), 1):
                    words = [word.replace("./", f"{tmp_path}/") for word in line.split()[2:]]
                    nodes.append(NodeProcess(f"node {number}", words, tmp_path / f"{number}.log", stop_timeout=20))
                    nodes[-1].spawn()
                for node in nodes:
                    node.wait_until_ready(PATIENCE_S)
            elif kind == "sh":
                script = re.sub(r"init \./secured", f"init ./secured --port {free_port_range(40)}", text)
                output += run("sh", "-ec", script, env={**os.environ, "PATH": path}, cwd=tmp_path)
    finally:
        for node in nodes:
            node.reap(signal.SIGKILL)
    assert len(nodes) == 3 and "\nhello\n" in output and "partitions: 0 offline" in output
