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
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

from millstream.cli import exit_codes
from millstream.config.addresses import Listener
from millstream.config.broker_config import BrokerConfig
from millstream.config.cores import Ports, allot_ports, core_config, core_id
from millstream.config.setting import ConfigError
from millstream.node.runtime.supervised_process import SupervisedProcess
from millstream.testing.node_process import free_ports

if TYPE_CHECKING:
    from millstream.cli.gateway_process import GatewayProcess

_log = logging.getLogger("millstream.cores")
READY = "ready kafka="
_STOP_TIMEOUT_S = 30.0
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
    """`words` are the options of `serve` that all nodes share."""

    def __init__(self, config: BrokerConfig, count: int, words: Sequence[str]) -> None:
        self._config = config
        self._count = count
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self.ports: tuple[Ports, ...] = allot_ports(config, count, lambda: free_ports(1)[0])
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
            match self._events.get():
                case _Ready(index) if waiting:
                    waiting.discard(index)
                    if not waiting:
                        ready()
                case _Failed(index, ending):
                    print(
                        f"millstream: node {core_id(self._config, index)} did not start ({ending}); the lines of "
                        f"node={core_id(self._config, index)} above have the reason",
                        file=sys.stderr,
                    )
                    return exit_codes.FAILED
                case _Signal(signal.SIGHUP) if self._uses_tls:
                    for process in self._processes:
                        process.send(signal.SIGHUP)
                case _Signal():
                    return exit_codes.OK

    @property
    def _uses_tls(self) -> bool:
        config = self._configs[0]
        return any(config.listener(each.name).uses_tls for each in (*config.listeners, *config.controller_listeners))

    def _process(self, index: int, words: Sequence[str]) -> SupervisedProcess:
        number = core_id(self._config, index)

        def on_line(line: str) -> None:
            if line.startswith(READY):
                if self._was_ready[index]:
                    _log.info("node_ready_again node=%d", number)
                self._was_ready[index] = True
                self._events.put(_Ready(index))

        def on_end(ending: str) -> bool:
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
        return SupervisedProcess(f"node_{number}", arguments, on_line=on_line, on_end=on_end)

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
            process.stop(_STOP_TIMEOUT_S)
        first.stop(_STOP_TIMEOUT_S)


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
