"""A YARN cluster on loopback: Hadoop's ResourceManager and NodeManagers as processes, ended by process id.

Containers are processes of this user (DefaultContainerExecutor), and files are on the local file system.
"""

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from millstream.testing.node_process import HOST, free_ports
from tests.system.spark_cluster.processes import SMALL_JVM, ends_of, executors_below, kill_tree, start
from tests.waiting import LONG_TIMEOUT_SECONDS
from tools import hadoop_yarn

_DAEMON = "org.apache.hadoop.yarn.server"
_QUEUES = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
}
_LOGGING = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1}: %m%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""


class Yarn:
    """Use it with `with`; ready when the ResourceManager knows all NodeManagers."""

    def __init__(self, directory: Path, *, nodes: int, cores: int = 2, memory_mb: int = 2600) -> None:
        self._directory = directory
        self._nodes, self._cores, self._memory_mb = nodes, cores, memory_mb
        self._ports = free_ports(5)
        self._manager: subprocess.Popen[bytes] | None = None
        self.nodes: list[subprocess.Popen[bytes]] = []

    @property
    def settings_directory(self) -> Path:
        """For HADOOP_CONF_DIR."""
        return self._directory / "settings"

    def __enter__(self) -> "Yarn":
        class_path = hadoop_yarn.class_path()
        self._write_settings(self.settings_directory, {})
        try:
            where = self.settings_directory
            self._manager = self._start("manager", "resourcemanager.ResourceManager", where, class_path)
            self._wait_for_nodes(0)
            for number in range(1, self._nodes + 1):
                own = self._directory / f"settings-{number}"
                files = self._directory / f"node-{number}"
                directories = {
                    "yarn.nodemanager.local-dirs": str(files / "local"),
                    "yarn.nodemanager.log-dirs": str(files / "logs"),
                }
                self._write_settings(own, directories)
                self.nodes.append(self._start(f"node-{number}", "nodemanager.NodeManager", own, class_path))
            self._wait_for_nodes(self._nodes)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def executors(self) -> list[psutil.Process]:
        return [each for node in self.nodes for each in executors_below(node.pid)]

    def applications(self) -> list[dict[str, Any]]:
        """As the ResourceManager knows them."""
        found = (self._ask("apps")["apps"] or {}).get("app", [])
        return sorted(found, key=lambda each: int(each["startedTime"]))

    def logs(self) -> str:
        containers = sorted(self._directory.glob("node-*/logs/*/*/stderr"), key=lambda each: each.stat().st_mtime)
        return ends_of([*sorted(self._directory.glob("*.log")), *containers[-4:]])

    def close(self) -> None:
        # NodeManagers first: containers are in process groups of their own, and below their NodeManager.
        for process in (*self.nodes, *([self._manager] if self._manager else [])):
            kill_tree(process)

    def _ask(self, what: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{HOST}:{self._ports[4]}/ws/v1/cluster/{what}", timeout=10) as response:
            return dict(json.load(response))

    def _running_nodes(self) -> int:
        try:
            return int(self._ask("metrics")["clusterMetrics"]["activeNodes"])
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return -1

    def _wait_for_nodes(self, count: int) -> None:
        deadline = time.monotonic() + LONG_TIMEOUT_SECONDS
        while self._running_nodes() < count:
            gone = [each for each in (self._manager, *self.nodes) if each is not None and each.poll() is not None]
            assert not gone, f"YARN did not start\n{self.logs()}"
            assert time.monotonic() < deadline, f"the ResourceManager does not see {count} nodes\n{self.logs()}"
            time.sleep(0.2)

    def _start(self, name: str, main: str, settings: Path, class_path: list[str]) -> "subprocess.Popen[bytes]":
        (settings / "log4j2.properties").write_text(_LOGGING)
        options = [*SMALL_JVM.split(), "-Xmx300m", f"-Dlog4j2.configurationFile={settings / 'log4j2.properties'}"]
        where = os.pathsep.join([str(settings), *class_path])
        log = self._directory / f"{name}.log"
        return start(["java", *options, "-cp", where, f"{_DAEMON}.{main}"], log, {})

    def _write_settings(self, directory: Path, more: Mapping[str, str]) -> None:
        client, scheduler, tracker, admin, web = (f"{HOST}:{port}" for port in self._ports)
        core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(self._directory / "tmp")}
        yarn = {
            "yarn.resourcemanager.hostname": HOST,
            "yarn.resourcemanager.address": client,
            "yarn.resourcemanager.scheduler.address": scheduler,
            "yarn.resourcemanager.resource-tracker.address": tracker,
            "yarn.resourcemanager.admin.address": admin,
            "yarn.resourcemanager.webapp.address": web,
            "yarn.scheduler.minimum-allocation-mb": "128",
            # All nodes are one host, and are told apart by their ports.
            "yarn.scheduler.include-port-in-node-name": "true",
            "yarn.nodemanager.hostname": HOST,
            "yarn.nodemanager.address": f"{HOST}:0",
            "yarn.nodemanager.localizer.address": f"{HOST}:0",
            "yarn.nodemanager.webapp.address": f"{HOST}:0",
            "yarn.nodemanager.resource.cpu-vcores": str(self._cores),
            "yarn.nodemanager.resource.memory-mb": str(self._memory_mb),
            # A JVM reserves far more addresses than it uses.
            "yarn.nodemanager.vmem-check-enabled": "false",
            # A disk that is 90 % full makes a node unhealthy; that of a test machine may be.
            "yarn.nodemanager.disk-health-checker.enable": "false",
        }
        directory.mkdir(parents=True, exist_ok=True)
        for name, values in (("core-site", core), ("yarn-site", {**yarn, **more}), ("capacity-scheduler", _QUEUES)):
            rows = "".join(
                f"<property><name>{key}</name><value>{value}</value></property>\n" for key, value in values.items()
            )
            (directory / f"{name}.xml").write_text(f"<configuration>\n{rows}</configuration>\n")
