"""Pods and containers as processes: each in network, mount and host name namespaces of its own, on one bridge.

To be used in the namespaces that `tests.system.chaos.containment.unshare` makes: nothing is left behind.
"""

import http.client
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.waiting import TIMEOUT_SECONDS

HUB = "10.88.0.254"
MOUNT_POINTS = ("/etc/kafka/secrets", "/mnt/shared/config", "/var/lib/kafka/data", "/run/millstream", "/opt/kafka")
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def prepare(names: Mapping[str, str]) -> None:
    """A bridge, the mount points of images, and a file of host names for all."""
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "hub", "type", "bridge")
    run("ip", "addr", "add", f"{HUB}/24", "dev", "hub")
    run("ip", "link", "set", "hub", "up")
    layers = Path("/run/layers")
    for place in ("etc", "var/lib", "usr/lib", "mnt", "opt"):
        upper, work = layers / place / "upper", layers / place / "work"
        upper.mkdir(parents=True)
        work.mkdir()
        options = f"lowerdir=/{place},upperdir={upper},workdir={work}"
        run("mount", "-t", "overlay", "overlay", "-o", options, f"/{place}")
    for point in MOUNT_POINTS:
        Path(point).mkdir(parents=True, exist_ok=True)
    lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names.items())]
    Path("/etc/hosts").write_text("\n".join(lines) + "\n")


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"


@dataclass(slots=True)
class Pod:
    """A container that runs: `mounts` are directories by the place where the container sees them."""

    name: str
    address: str
    command: Sequence[str]
    environment: Mapping[str, str]
    mounts: Mapping[str, Path]
    log: Path
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        script = [f"hostname {self.name}"]
        for place, source in self.mounts.items():
            source.mkdir(parents=True, exist_ok=True)
            script.append(f"mount --bind '{source}' '{place}'")
        script.append('exec "$@"')
        enter = ["ip", "netns", "exec", self._namespace(), "unshare", "--mount", "--uts"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*enter, "sh", "-ec", "\n".join(script), "sh", *self.command],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _environment(self) -> dict[str, str]:
        return {"PATH": PATH, "HOSTNAME": self.name, "LANG": "C.UTF-8", **self.environment}

    def _namespace(self) -> str:
        if not Path(f"/run/netns/{self.name}").exists():
            run("ip", "netns", "add", self.name)
            link = f"v{self.address.rpartition('.')[2]}"
            run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
            run("ip", "link", "set", link, "master", "hub", "up")
            for words in (("lo", "up"), ("eth0", "up")):
                run("ip", "-n", self.name, "link", "set", *words)
            run("ip", "-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        return self.name

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def exec(self, *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """`kubectl exec`: runs a command in the namespaces of the pod."""
        assert self._process is not None
        enter = ("nsenter", f"--target={self._process.pid}", "--mount", "--net", "--uts")
        return subprocess.run(
            [*enter, *command],
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS * 3,
            input=stdin,
        )

    def get(self, path: str, port: int, *, tls: bool) -> tuple[int, str]:
        """An HTTP probe, as the kubelet sends it: certificates are not checked. 0 if there is no response."""
        connection: http.client.HTTPConnection
        if tls:
            context = ssl._create_unverified_context()
            connection = http.client.HTTPSConnection(self.address, port, timeout=10, context=context)
        else:
            connection = http.client.HTTPConnection(self.address, port, timeout=10)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        except OSError as error:
            return 0, str(error)
        finally:
            connection.close()

    def wait_for(self, path: str, port: int, *, tls: bool) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while (response := self.get(path, port, tls=tls))[0] != 200:
            assert self.is_running, f"{self.name} has ended:\n{self.tail()}"
            assert time.monotonic() < deadline, f"{self.name} {path}: {response}\n{self.tail()}"
            time.sleep(0.1)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def terminate(self, limit_s: float = TIMEOUT_SECONDS) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(limit_s)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
