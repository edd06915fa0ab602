"""The supervisor of `serve --cores`: runs the nodes of one machine as child processes, and one gateway for all.

- One ready line on stdout, when all nodes accept connections. A node that cannot start at first ends them all.
- One log on stderr: each node writes its lines itself, with its id in front.
- A node that ends later is started again, after a pause that grows; the log has a line about it.
- One stop: the gateway, then the nodes that are only brokers, then the first node, which may be the controller.
- If this process ends in whatever way, the kernel closes the standard input of the nodes, and they stop.

The settings of each node are made from the same words of the command line by `config/cores.py`, in the node's own
process. So no secret is written anywhere. The number of nodes is kept, and changed, by `resizing.py`.
"""

import contextlib
import json
import logging
import queue
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from millstream.cli import exit_codes
from millstream.cli.cores.resizing import CONTROLLER_PORT
from millstream.common.lazy_dataclass import dataclass
from millstream.config.addresses import Listener
from millstream.config.broker_config import BrokerConfig
from millstream.config.cores import FOLDERS, Ports, added_controller_listener, allot_ports, core_config, core_id
from millstream.config.setting import ConfigError
from millstream.node.runtime.service_manager import ChildPings, ServiceManager
from millstream.node.runtime.supervised_process import SupervisedProcess
from millstream.testing.node_process import free_ports

if TYPE_CHECKING:
    from millstream.cli.gateway_process import GatewayProcess

_log = logging.getLogger("millstream.cores")
READY = "ready kafka="
_STOP_TIMEOUT_SECONDS = 30.0
"""A node that has not stopped by then is killed. Its own stop takes at most about twelve seconds."""


@dataclass(frozen=True, slots=True)
class _Ready:
    index: int


@dataclass(frozen=True, slots=True)
class _Failed:
    index: int
    ending: str


@dataclass(frozen=True, slots=True)
class _Signal:
    number: int


_Event = _Ready | _Failed | _Signal


class Supervisor:
    """`words` are the options of `serve` that all nodes share. `service` is notified when all nodes are ready; its
    watchdog gets a ping if no node's event loop hangs."""

    def __init__(
        self, config: BrokerConfig, count: int, words: Sequence[str], service: ServiceManager | None = None
    ) -> None:
        self._config = config
        self._service = service or ServiceManager()
        watchdog_s = self._service.watchdog_s
        self._pings = [] if watchdog_s is None else [ChildPings(watchdog_s) for _ in range(count)]
        self._count = count
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self.ports: tuple[Ports, ...] = _allotted(config, count)
        self._configs = tuple(core_config(config, index, self.ports, socket.gethostname()) for index in range(count))
        self._was_ready = [False] * count
        self._processes = [self._process(index, words) for index in range(count)]

    def run(
        self,
        gateway: "GatewayProcess | None",
        ready: Callable[[], None],
    ) -> int:
        """Runs the nodes until SIGTERM or SIGINT; `ready` is called when all of them accept connections."""
        self._check_ports()
        with self._signals():
            try:
                for process in self._processes:
                    process.start()
                return self._watch(ready)
            finally:
                self._service.stopping()
                if gateway is not None:
                    gateway.stop()
                self._stop()

    def addresses(self, place: int = 0) -> str:
        """The advertised addresses of all nodes, of the listener at this place."""
        host = socket.gethostname()
        shown = [each.advertised({}, host, [each.listeners[place]])[0] for each in self._configs]
        return ",".join(str(each).partition("://")[2] for each in shown)

    def _watch(self, ready: Callable[[], None]) -> int:
        waiting = set(range(self._count))
        while True:
            try:
                event = self._events.get(timeout=self._service.ping_interval_s)
            except queue.Empty:
                self._ping()
                continue
            match event:
                case _Ready(index) if waiting:
                    waiting.discard(index)
                    if not waiting:
                        ready()
                        self._service.ready(f"ready kafka={self.addresses()}")
                case _Failed(index, ending):
                    print(
                        f"millstream: node {core_id(self._config, index)} did not start ({ending}); the lines of "
                        f"node={core_id(self._config, index)} above have the reason",
                        file=sys.stderr,
                    )
                    return exit_codes.FAILED
                case _Signal(signal.SIGHUP) if self._is_secured:
                    for process in self._processes:
                        process.send(signal.SIGHUP)
                case _Signal(signal.SIGHUP) if self._service.is_there:
                    _log.info("reload_without_effect reason=no certificates and no users to read again")
                case _Signal():
                    return exit_codes.OK

    def _ping(self) -> None:
        late = [core_id(self._config, index) for index, pings in enumerate(self._pings) if pings.are_late()]
        if late:
            _log.error("event_loop_hangs nodes=%s: no ping for the watchdog", late)
        else:
            self._service.ping()

    @property
    def _is_secured(self) -> bool:
        """Whether there are certificates or users to read again. Without, SIGHUP is a terminal that was closed."""
        config = self._configs[0]
        names = [each.name for each in (*config.listeners, *config.controller_listeners)]
        return any(config.listener(name).uses_tls or config.listener(name).uses_sasl for name in names)

    def _process(self, index: int, words: Sequence[str]) -> SupervisedProcess:
        number = core_id(self._config, index)

        def on_line(line: str) -> None:
            if line.startswith(READY):
                if self._was_ready[index]:
                    _log.info("node_ready_again node=%d", number)
                self._was_ready[index] = True
                if self._pings:
                    self._pings[index].begin()
                self._events.put(_Ready(index))

        def on_end(ending: str) -> bool:
            if self._pings:
                self._pings[index].forget()
            if not self._was_ready[index]:
                self._events.put(_Failed(index, ending))
            return self._was_ready[index]

        arguments = [
            "serve",
            *words,
            "--no-http",
            "--exit-with-stdin",
            "--core",
            str(index),
            "--core-ports",
            json.dumps([dict(each) for each in self.ports]),
        ]
        environment = self._pings[index].environment() if self._pings else None
        return SupervisedProcess(f"node_{number}", arguments, on_line=on_line, on_end=on_end, environment=environment)

    def _check_ports(self) -> None:
        """ConfigError for a port that another process has. The nodes would find it too, but later and one by one."""
        for config in self._configs:
            for listener in (*config.listeners, *config.controller_listeners):
                _check_port(listener, self._count)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def arrived(number: int, frame: FrameType | None) -> None:
            self._events.put(_Signal(number))

        before = {each: signal.signal(each, arrived) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _stop(self) -> None:
        """Brokers first, all at the same time: the controller, in the first node, lets them go."""
        first, *others = self._processes
        for process in others:
            process.begin_to_stop()
        for process in others:
            process.stop(_STOP_TIMEOUT_SECONDS)
        first.stop(_STOP_TIMEOUT_SECONDS)


def _allotted(config: BrokerConfig, count: int) -> tuple[Ports, ...]:
    """The ports of all nodes. The port of the listener between them is kept for the next start, if it is free then."""
    file = Path(config.data_dir) / FOLDERS / CONTROLLER_PORT
    kept = file.read_text().strip() if file.exists() else ""
    before = int(kept) if kept.isdigit() and _is_free(int(kept)) else 0
    ports = allot_ports(config, count, lambda: free_ports(1)[0], controller_port=before)
    added = added_controller_listener(config)
    if added is not None and str(ports[0][added]) != kept:
        file.write_text(f"{ports[0][added]}\n")
    return ports


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def _check_port(listener: Listener, count: int) -> None:
    family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
    try:
        # Bound as by a listener: otherwise a port that was just closed counts as taken.
        with socket.create_server((listener.host, listener.port), family=family):
            pass
    except OSError as error:
        reason = str(error.strerror or error).partition(" (")[0]
        raise ConfigError(
            f"cannot listen on {listener.host or '*'}:{listener.port}: {reason}; --cores {count} needs {count} free "
            "ports: stop the process that has it, or choose another with --listen HOST:PORT (port 0 picks free ones)",
            name="listeners",
        ) from None
