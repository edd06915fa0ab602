"""`EmbeddedCluster`: a real cluster of `millstream serve` processes, for tests and trials.

Each node has a `server.properties` as in Kafka's documentation, and keeps its ports over restarts.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from millstream.testing.embedded import setting_text
from millstream.testing.node_process import HOST, PORT_CHOICES, NodeProcess, PortTakenError, free_ports


class EmbeddedCluster:
    """Nodes 1, 2, 3…, each broker and controller. Use it in a `with` statement, or call `start` and `close`.

    - `nodes`: number of nodes.
    - `settings`: settings of all nodes.
    - `node_settings`: settings of single nodes, by number: {2: {"broker.rack": "b"}}.
    - `controllers`: number of additional nodes that are only controllers; the others are then only brokers.
    - `data_dir`: directory of all nodes, which is kept; by default a temporary one, which is removed at the end.
    - `security_protocol`: of all listeners: `SSL`, for example; the certificates are settings.
    - `first_node`: the id of the first node.
    - `first_port`: brokers have this and the following ports, controllers those after them; by default free ports.
    """

    def __init__(
        self,
        nodes: int = 3,
        settings: Mapping[str, Any] | None = None,
        *,
        node_settings: Mapping[int, Mapping[str, Any]] | None = None,
        controllers: int = 0,
        security_protocol: str = "PLAINTEXT",
        data_dir: str | os.PathLike[str] | None = None,
        first_node: int = 1,
        first_port: int | None = None,
        start_timeout: float = 60.0,
        stop_timeout: float = 30.0,
    ) -> None:
        after = first_node + nodes
        self.brokers = tuple(range(first_node, after))
        self.controllers = tuple(range(after, after + controllers)) or self.brokers
        self.nodes = tuple(sorted({*self.brokers, *self.controllers}))
        self._settings = dict(settings or {})
        self._node_settings = {number: dict(own) for number, own in (node_settings or {}).items()}
        self._given_data_dir = None if data_dir is None else Path(data_dir)
        self._scratch: Path | None = None
        self._first_port = first_port
        self._protocol = security_protocol
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._ports: dict[tuple[str, int], int] = {}
        self._processes: dict[int, NodeProcess] = {}

    def __enter__(self) -> "EmbeddedCluster":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def root(self) -> Path:
        """The directory of all nodes."""
        if self._given_data_dir is not None:
            self._given_data_dir.mkdir(parents=True, exist_ok=True)
            return self._given_data_dir
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="millstream-cluster-"))
        return self._scratch

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers."""
        return ",".join(self.address(number) for number in self.brokers)

    def address(self, number: int) -> str:
        """HOST:PORT of a node for clients."""
        return f"{HOST}:{self._port('client', number)}"

    def controller_address(self, number: int) -> str:
        """HOST:PORT of a node for other controllers and brokers."""
        return f"{HOST}:{self._port('controller', number)}"

    def data_dir(self, number: int) -> Path:
        """The data directory of a node."""
        return self.root / f"node-{number}" / "data"

    def log_file(self, number: int) -> Path:
        """The log of a node, over all its restarts."""
        return self.root / f"node-{number}" / "node.log"

    def pid(self, number: int) -> int:
        """The process id of a running node."""
        return self._process(number).pid

    def started(self, number: int) -> bool:
        """Whether a node was started and not stopped since; its process may have ended."""
        return self._process(number).started

    def running(self, number: int) -> bool:
        """Whether the process of a node runs."""
        return self._process(number).running

    def log_tail(self, number: int) -> str:
        """The last lines of the log of a node."""
        return self._process(number).log_tail()

    def exit_code(self, number: int) -> int | None:
        """The exit code of a node that ended; None if it runs."""
        return self._process(number).exit_code

    def start(self, *numbers: int) -> None:
        """Starts nodes, by default all that are not started, and waits until each is ready."""
        chosen: Sequence[int] = numbers or [number for number in self.nodes if not self._process(number).started]
        # No client knows the ports yet, and the directories are empty: both may change.
        is_fresh = not self._ports and self._first_port is None and self._given_data_dir is None
        is_fresh = is_fresh and not any(self.data_dir(number).exists() for number in self.nodes)
        for _ in range(PORT_CHOICES - 1 if is_fresh else 0):
            try:
                self._start(chosen)
            except PortTakenError:
                self.kill()
                for number in self.nodes:
                    shutil.rmtree(self.data_dir(number), ignore_errors=True)
                self._ports = {}
            else:
                return
        self._start(chosen)

    def _start(self, chosen: Sequence[int]) -> None:
        self.spawn(*chosen)
        for number in chosen:
            self.wait_until_ready(number)

    def spawn(self, *numbers: int) -> None:
        """Starts nodes without waiting: a node of a quorum without majority does not become ready."""
        for number in numbers:
            self.write_properties(number)
            self._process(number).spawn()

    def wait_until_ready(self, number: int) -> None:
        """Waits until a node accepts connections."""
        self._process(number).wait_until_ready(self._start_timeout)

    def use_source(self, number: int, source: Path | None, settings: Mapping[str, Any] | None = None) -> None:
        """From its next start on, a node runs the package in this directory: another version. None: this one.
        `settings` take the place of the node's own settings."""
        self._process(number).source = source
        if settings is not None:
            self._node_settings[number] = dict(settings)

    def stop(self, *numbers: int) -> None:
        """Stops nodes cleanly (SIGTERM), in turn; by default all of them."""
        for number in numbers or self.nodes:
            self._process(number).reap(signal.SIGTERM)

    def terminate(self, number: int) -> None:
        """Sends SIGTERM to a node without waiting; `stop` waits."""
        os.kill(self.pid(number), signal.SIGTERM)

    def kill(self, *numbers: int) -> None:
        """Kills nodes (SIGKILL), by default all of them."""
        for number in numbers or self.nodes:
            self._process(number).reap(signal.SIGKILL)

    def restart(self, *numbers: int) -> None:
        """Stops and starts nodes in turn (a rolling restart), by default all of them."""
        for number in numbers or self.nodes:
            self.stop(number)
            self.start(number)

    def pause(self, number: int) -> None:
        """Stops the process of a node with SIGSTOP."""
        os.kill(self.pid(number), signal.SIGSTOP)

    def resume(self, number: int) -> None:
        """Continues a paused node."""
        os.kill(self.pid(number), signal.SIGCONT)

    def close(self) -> None:
        """Kills all nodes and removes the temporary directory."""
        for process in self._processes.values():
            process.reap(signal.SIGKILL)
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def properties(self, number: int) -> dict[str, str]:
        """The settings of a node."""
        is_broker, is_controller = number in self.brokers, number in self.controllers
        listeners = []
        if is_broker:
            listeners.append(f"{self._protocol}://{self.address(number)}")
        if is_controller:
            listeners.append(f"CONTROLLER://{self.controller_address(number)}")
        voters = ",".join(f"{voter}@{self.controller_address(voter)}" for voter in self.controllers)
        roles = [role for role, has in (("broker", is_broker), ("controller", is_controller)) if has]
        lines: dict[str, Any] = {
            "process.roles": ",".join(roles),
            "node.id": number,
            "controller.quorum.voters": voters,
            "listeners": ",".join(listeners),
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.data_dir(number),
            **self._security(),
            **self._settings,
            **self._node_settings.get(number, {}),
        }
        return {name: setting_text(value) for name, value in lines.items()}

    def _security(self) -> dict[str, str]:
        protocol = self._protocol
        if protocol == "PLAINTEXT":
            return {}
        return {
            "listener.security.protocol.map": f"{protocol}:{protocol},CONTROLLER:{protocol}",
            "security.inter.broker.protocol": protocol,
        }

    def write_properties(self, number: int) -> Path:
        """Writes the server.properties of a node."""
        path = self.root / f"node-{number}" / "server.properties"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.chmod(0o600)  # settings may be secrets
        path.write_text("".join(f"{name}={value}\n" for name, value in self.properties(number).items()))
        return path

    def _process(self, number: int) -> NodeProcess:
        process = self._processes.get(number)
        if process is None:
            directory = self.root / f"node-{number}"
            directory.mkdir(parents=True, exist_ok=True)
            arguments = ["--config", str(directory / "server.properties")]
            process = NodeProcess(f"node {number}", arguments, self.log_file(number), stop_timeout=self._stop_timeout)
            self._processes[number] = process
        return process

    def _port(self, kind: str, number: int) -> int:
        if not self._ports:
            wanted = [("client", each) for each in self.brokers] + [("controller", each) for each in self.controllers]
            first = self._first_port
            ports = free_ports(len(wanted)) if first is None else range(first, first + len(wanted))
            self._ports = dict(zip(wanted, ports, strict=True))
        return self._ports[kind, number]
