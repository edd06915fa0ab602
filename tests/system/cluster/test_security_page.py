"""The steps of docs/security.md, run as they are written, with ports of this test."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from millstream.testing.node_process import NodeProcess, free_ports
from tests.repository import REPOSITORY
from tests.system.console.conftest import GatewayProcess
from tests.waiting import TIMEOUT_SECONDS

PAGE = (REPOSITORY / "docs" / "security.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"```(sh|sh background|sh gateway)\n(.*?)```", re.S)


def blocks() -> list[tuple[str, list[str]]]:
    return [(kind, body.strip().splitlines()) for kind, body in _BLOCK.findall(PAGE)]


def signs_in(words: list[str], directory: Path) -> tuple[int, int]:
    """Starts the gateway; the status of a request without and with the password of the page's administrator."""
    gateway = GatewayProcess("", directory / "gateway.log", *words)
    (password,) = re.findall(r'password="([^"]+)"', (directory / "secured/client/client.properties").read_text())
    try:
        codes = [
            httpx.get(f"{gateway.url}/topics", timeout=TIMEOUT_SECONDS, auth=auth).status_code
            for auth in (None, ("admin", password))
        ]
    finally:
        gateway.stop()
    return codes[0], codes[1]


def test_the_steps_of_the_page(tmp_path: Path) -> None:
    bin_directory = tmp_path / "bin"
    bin_directory.mkdir()
    command = bin_directory / "millstream"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m millstream "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PATH": f"{bin_directory}:{os.environ['PATH']}"}
    nodes: list[NodeProcess] = []
    console: tuple[int, ...] = ()
    output = ""
    try:
        for kind, lines in blocks():
            if kind == "sh background":
                for line in lines:
                    words = [word.replace("./", f"{tmp_path}/") for word in line.split()[2:]]
                    log = tmp_path / f"node-{len(nodes) + 1}.log"
                    nodes.append(NodeProcess(f"node {len(nodes) + 1}", words, log, stop_timeout=20))
                    nodes[-1].spawn()
                for node in nodes:
                    node.wait_until_ready(60)
                continue
            if kind == "sh gateway":
                (line,) = lines
                words = [word.replace("./", f"{tmp_path}/") for word in line.split()[2:]]
                console = signs_in(words, tmp_path)
                continue
            lines = [line.replace("init ./secured", f"init ./secured --port {free_ports(40)[0]}") for line in lines]
            run = subprocess.run(
                ["sh", "-e", "-c", "\n".join(lines)],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert run.returncode == 0, (lines, run.stderr)
            output += run.stdout
    finally:
        for node in nodes:
            node.reap(signal.SIGKILL)
    assert len(nodes) == 3
    assert console == (401, 200)
    for said in ("Next steps:", "created orders", "\nhello\n", "leader skew", "nothing weak was found"):
        assert said in output, said


@pytest.mark.parametrize("host", ["0.0.0.0", ""])
def test_the_refusal_of_the_page(host: str, tmp_path: Path) -> None:
    address = f"listeners=PLAINTEXT://{host}:{free_ports(1)[0]}"
    command = [sys.executable, "-m", "millstream", "serve", "--no-http", "--data-dir", str(tmp_path), "--set", address]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, stdin=subprocess.DEVNULL)
    assert refused.returncode == 1
    assert "listens on every network interface with no authentication" in refused.stderr
    assert "Either use it on this machine only" in " ".join(PAGE.split())
    assert not any(tmp_path.iterdir())
