"""The pages on pip, systemd and containers: their commands, run as they are written."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from millstream.testing.node_process import NodeProcess, free_port_range
from tests.repository import REPOSITORY
from tests.system.chaos import containment
from tests.system.packages.installations import plain_wheel, run
from tests.system.packages.pages import blocks
from tests.waiting import TIMEOUT_SECONDS


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
    """Without the installation: `millstream` is the command of this environment."""
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
                    node.wait_until_ready(TIMEOUT_SECONDS)
            elif kind == "sh":
                output += run("sh", "-ec", with_free_ports(text), env={**os.environ, "PATH": path}, cwd=tmp_path)
    finally:
        for node in nodes:
            node.reap(signal.SIGKILL)
    assert len(nodes) == 3 and "\nhello\n" in output and "partitions: 0 offline" in output


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_page_of_pip_in_an_empty_environment(tmp_path: Path) -> None:
    """With the installation: pip makes the environment, from a wheel in the folder that the page names."""
    plain_wheel(tmp_path / "dist")
    others = ("PYTHON", "MILLSTREAM_COMPILED", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    env["PATH"] = f"{tmp_path}/millstream-venv/bin:{Path(sys.base_prefix) / 'bin'}:{env['PATH']}"
    links = [str(tmp_path / "dist"), *os.environ.get("PIP_FIND_LINKS", "").split()]
    env |= {"PIP_FIND_LINKS": " ".join(links), "PIP_CONSTRAINT": str(REPOSITORY / "constraints.txt")}
    output, count = "", 0
    with ExitStack() as nodes:
        for kind, text in blocks("deploy-pip.md"):
            if kind == "sh background":
                lines = [shlex.split(line) for line in text.strip().splitlines()]
                started = [nodes.enter_context(node(words, tmp_path, env)) for words in lines]
                for each in started:
                    assert each.stdout is not None and each.stdout.readline().startswith("ready kafka="), each.args
                count += len(started)
            elif kind in ("sh", "sh install"):
                output += run("sh", "-ec", with_free_ports(text), env=env, cwd=tmp_path)
    assert count == 3 and "\nhello\n" in output and "partitions: 0 offline" in output
    assert output.startswith("millstream ") or "\nmillstream " in output


def with_free_ports(script: str) -> str:
    return re.sub(r"init \./secured", f"init ./secured --port {free_port_range(40)}", script)


@contextmanager
def node(words: Sequence[str], directory: Path, env: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A command of the page that goes on until it is stopped; it must stop cleanly."""
    program = shutil.which(words[0], path=env["PATH"])
    assert program is not None and Path(program).is_relative_to(directory), program
    process = subprocess.Popen([program, *words[1:]], env=env, cwd=directory, stdout=subprocess.PIPE, text=True)
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
