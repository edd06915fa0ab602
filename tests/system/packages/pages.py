"""Runs the commands of docs/deploy-systemd.md and docs/deploy-container.md, each machine or service as a pod.

    python -m tests.system.packages.pages systemd|container|booted FOLDER

To be started by `unshare` (`containment.unshare`). A machine has its own `/etc/millstream` and `/var/lib/millstream`;
its unit is started as systemd starts it, with a socket for its messages. With `booted`, each machine is a folder with
Debian and the package, in which systemd itself runs.
"""

import configparser
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from tests.repository import REPOSITORY
from tests.system.packages.booted import booted
from tests.system.packages.pods import PATH, Pod, prepare, run
from tests.waiting import TIMEOUT_SECONDS, until

_BLOCK = re.compile(r"```(\w+(?: \w+)?)\n(.*?)```", re.S)
UNIT = REPOSITORY / "deploy" / "systemd" / "millstream.service"
DOCKERFILE = REPOSITORY / "deploy" / "container" / "Dockerfile"
_STATUS = re.compile(r"^(.*\bmillstream cluster status\b.*)$", re.M)


def blocks(page: str) -> list[tuple[str, str]]:
    """The blocks of a page: their language, with a word of ours, and their text. `cluster status` fails while a replica
    is not in sync, as it may be for a moment after a start, so it is repeated until it does not."""
    found = _BLOCK.findall((REPOSITORY / "docs" / page).read_text(encoding="utf-8"))
    return [
        (kind, _STATUS.sub(r"until \1; do sleep 0.2; done", text) if kind == "sh" else text) for kind, text in found
    ]


def shell(script: str, directory: Path) -> None:
    done = subprocess.run(
        ["sh", "-ec", script], cwd=directory, env={**os.environ, "PATH": PATH}, capture_output=True, text=True
    )
    print(done.stdout)
    assert done.returncode == 0, (script, done.stderr)


class Machine:
    """A machine with systemd, of which only the unit of Millstream runs."""

    def __init__(self, number: int, name: str, directory: Path) -> None:
        unit = configparser.RawConfigParser(strict=False)
        unit.optionxform = str  # type: ignore[assignment,method-assign]
        unit.read(UNIT)
        service = unit["Service"]
        assert (service["Type"], service["User"]) == ("notify", "millstream")
        self._places = {
            "/etc/millstream": directory / f"etc-{number}",
            "/var/lib/millstream": directory / f"state-{number}",
        }
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        address = f"/run/notify-{number}"
        self._socket.bind(address)
        self._socket.settimeout(TIMEOUT_SECONDS)
        self.pod = Pod(
            name.partition(".")[0],
            f"10.88.0.{10 + number}",
            shlex.split(service["ExecStart"]),
            {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "60000000"},
            self._places,
            directory / f"machine-{number}.log",
        )

    def run(self, script: str, directory: Path) -> None:
        """Commands on the machine; `systemctl enable --now` starts the unit."""
        binds = "".join(f"mkdir -p '{source}'; mount --bind '{source}' {at}\n" for at, source in self._places.items())
        lines = script.splitlines()
        assert lines[-1] == "systemctl enable --now millstream"
        commands = "\n".join((binds, *lines[:-1]))
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-ec", commands], cwd=directory, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        self.pod.start()

    def wait_until_ready(self) -> None:
        try:
            while b"READY=1" not in self._socket.recv(4096):
                pass
        except TimeoutError:
            raise AssertionError(self.pod.tail()) from None


def systemd(directory: Path) -> None:
    names = ("one.example", "two.example", "three.example")
    prepare({name: f"10.88.0.{11 + index}" for index, name in enumerate(names)})
    for place in ("/etc/millstream", "/var/lib/millstream", "/usr/lib/millstream/bin"):
        Path(place).mkdir(parents=True, exist_ok=True)
    Path("/usr/lib/millstream/bin/millstream").symlink_to(Path(sys.executable).parent / "millstream")
    run("systemd-sysusers", str(REPOSITORY / "deploy" / "systemd" / "millstream.conf"))
    machines = [Machine(number, name, directory) for number, name in enumerate(names, 1)]
    try:
        for kind, text in blocks("deploy-systemd.md"):
            if kind == "sh":
                shell(text, directory)
            elif kind == "sh machines":
                for number, machine in enumerate(machines, 1):
                    machine.run(text.strip().replace("node-N", f"node-{number}"), directory)
                for machine in machines:
                    machine.wait_until_ready()
        for machine in machines:
            assert machine.pod.terminate() == 0, machine.pod.tail()
    finally:
        for machine in machines:
            machine.pod.kill()


def systemd_itself(directory: Path, folder: Path) -> None:
    """The same page on three machines with systemd. `folder` has Debian with the package, and is not changed."""
    names = {
        name: f"10.88.0.{11 + index}" for index, name in enumerate(("one.example", "two.example", "three.example"))
    }
    prepare(names)
    with ExitStack() as open_machines, ThreadPoolExecutor(len(names)) as threads:
        machines = []
        for number, (name, address) in enumerate(names.items(), 1):
            root, changes = directory / f"machine-{number}", directory / f"changes-{number}"
            for place in (root, changes / "upper", changes / "work"):
                place.mkdir(parents=True)
            layers = f"lowerdir={folder},upperdir={changes}/upper,workdir={changes}/work"
            run("mount", "-t", "overlay", "overlay", "-o", layers, str(root))
            open_machines.callback(run, "umount", "--lazy", str(root))
            (root / "etc/hostname").write_text(f"{name}\n")
            (root / "etc/hosts").write_text(Path("/etc/hosts").read_text())
            machines.append(open_machines.enter_context(booted(root, directory / f"console-{number}.log")))
            machines[-1].join("hub", address)
        for kind, text in blocks("deploy-systemd.md"):
            if kind == "sh":
                shell(text, directory)
            elif kind == "sh machines":
                started = []
                for number, machine in enumerate(machines, 1):
                    shutil.copytree(directory / "secured", directory / f"machine-{number}/root/secured")
                    script = f"cd /root\n{text.replace('node-N', f'node-{number}')}"
                    started.append(threads.submit(machine.run, "sh", "-ec", script))
                for each in started:  # a node is ready when the quorum is formed
                    each.result()
        for machine in machines:
            assert machine.show("millstream", "ActiveState") == "active"
            assert machine.show("millstream", "NRestarts") == "0"


def entry_point() -> list[str]:
    found = re.findall(r"^ENTRYPOINT (.*)$", DOCKERFILE.read_text(), re.M)
    words: list[str] = json.loads(found[-1])
    return words


def container(directory: Path) -> None:
    """A stand-in for `docker compose`. The image has Kafka's scripts, as the Dockerfile installs them."""
    assert "millstream kafka-script --install /opt/kafka/bin" in DOCKERFILE.read_text()
    services: dict[str, Service] = {}
    addresses = {
        name: f"10.88.0.{11 + index}" for index, name in enumerate(("kafka-1", "kafka-2", "kafka-3", "broker"))
    }
    prepare(addresses)
    run(f"{Path(sys.executable).parent}/millstream", "kafka-script", "--install", "/opt/kafka/bin")
    try:
        for kind, text in blocks("deploy-container.md"):
            if kind == "sh":
                shell(text, directory)
            elif kind == "yaml compose":
                _end(services)
                services = {
                    name: Service(name, service, addresses[name], directory)
                    for name, service in yaml.safe_load(text)["services"].items()
                }
            elif kind == "sh docker":
                for line in text.strip().splitlines():
                    _docker(line, services)
        _end(services)
    finally:
        for each in services.values():
            each.pod.kill()


class Service:
    """A service of a compose file."""

    def __init__(self, name: str, service: dict[str, Any], address: str, directory: Path) -> None:
        volumes = dict(reversed(each.split(":")) for each in service.get("volumes", ()))
        mounts = {at: directory / source for at, source in volumes.items()}
        mounts |= {at: directory / f"{name}{at.replace('/', '-')}" for at in service.get("tmpfs", ("/run/millstream",))}
        variables = {key: str(value) for key, value in service.get("environment", {}).items()}
        self.check = service.get("healthcheck", {}).get("test")
        self.pod = Pod(service["hostname"], address, entry_point(), variables, mounts, directory / f"{name}.log")

    def wait_until_healthy(self) -> None:
        if self.check is None:
            self.pod.wait_for("/readyz", 9092, tls=True)
            healthy = self.pod.exec("millstream", "container", "--health")
            assert healthy.returncode == 0, healthy.stderr
            return
        kind, *words = self.check
        command = ["sh", "-c", *words] if kind == "CMD-SHELL" else words
        until(lambda: self.pod.exec(*command).returncode == 0, f"{command} says that {self.pod.name} is healthy")


def _end(services: Mapping[str, Service]) -> None:
    for each in services.values():
        assert each.pod.terminate() == 0, each.pod.tail()


def _docker(line: str, services: Mapping[str, Service]) -> None:
    before, _, line = line.rpartition("| ")
    stdin = subprocess.run(["sh", "-c", before], capture_output=True, text=True, check=True).stdout if before else ""
    match shlex.split(line):
        case ["docker", "compose", "up", "--detach", "--wait"]:
            for each in services.values():
                each.pod.start()
            for each in services.values():
                each.wait_until_healthy()
        case ["docker", "compose", "exec", name, *command] | ["docker", "exec", "--interactive", name, *command]:
            done = services[name].pod.exec(*command, stdin=stdin)
            while done.returncode and command[:3] == ["millstream", "cluster", "status"]:  # see `blocks`
                time.sleep(0.2)
                done = services[name].pod.exec(*command)
            print(done.stdout)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
        case words:
            raise AssertionError(f"{words} is not known here")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        if sys.argv[1] == "booted":
            systemd_itself(Path(place), Path(sys.argv[2]))
        else:
            {"systemd": systemd, "container": container}[sys.argv[1]](Path(place))
    print("done")
