"""A node in a process of its own: the event loop, signals, limits, and the way out."""

import asyncio
import gc
import logging
import resource
import signal
import sys
from collections.abc import Callable

from millstream.config.broker_config import BrokerConfig
from millstream.config.setting import ConfigError
from millstream.config.table import cluster
from millstream.formats.model.errors import KafkaError
from millstream.node.environment import Environment
from millstream.node.runtime.disk import RealDisk
from millstream.node.runtime.node import Node
from millstream.node.runtime.offline_node import OfflineNode
from millstream.node.runtime.real_environment import ProcessWatch, real_environment

_log = logging.getLogger("millstream.node")
_SWITCH_SECONDS = 0.0005
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
"""Between attempts to use a log directory again that has failed. Each failure doubles the pause."""
_STEADY_S = 600.0
"""After so long without a failure the pauses are short again."""


def run(config: BrokerConfig, ready: Callable[[str], None], leaving: Callable[[], None]) -> int:
    """Runs a node until it is asked to stop; ConfigError if it cannot start or go on.

    `leaving` is called, in a thread, before the node stops: whatever stands in front of it goes first.
    """
    _raise_file_limit()
    # A thread that checks cold bytes or rebuilds an index must not keep the interpreter from the loop for long.
    sys.setswitchinterval(_SWITCH_SECONDS)
    loop = _new_loop()
    asyncio.set_event_loop(loop)
    environment = real_environment(loop)
    watch = ProcessWatch(environment, config.data_dir)
    watch.start()
    try:
        # The loop's own signal handling works only while it runs, so the start runs inside it too: a signal that comes
        # during a long recovery, or right after the ready line, is not lost.
        loop.run_until_complete(_Lives(config, environment, watch, ready, leaving).run())
    finally:
        watch.close()
        loop.close()
    return 0


class _Lives:
    """A node, and the next one when its log directory works again after a failure; until it is asked to stop."""

    def __init__(
        self,
        config: BrokerConfig,
        environment: Environment,
        watch: ProcessWatch,
        ready: Callable[[str], None],
        leaving: Callable[[], None],
    ) -> None:
        self._config = config
        self._environment = environment
        self._watch = watch
        self._ready = ready
        self._leaving = leaving
        self._loop = environment.loop
        self._was_ready = False
        self._pause_s = _FIRST_PAUSE_S
        self._running: Node | OfflineNode | None = None

    async def run(self) -> None:
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, stopping.set)
        await asyncio.sleep(0)
        asked_to_stop = asyncio.ensure_future(stopping.wait())
        living = asyncio.ensure_future(self._live())
        try:
            await asyncio.wait((living, asked_to_stop), return_when=asyncio.FIRST_COMPLETED)
            if living.done():
                living.result()
        finally:
            asked_to_stop.cancel()
            living.cancel()
            await self._loop.run_in_executor(None, self._leaving)
            if isinstance(self._running, Node):
                await self._running.stop()
            elif self._running is not None:
                self._running.close()

    async def _live(self) -> None:
        while True:
            node = self._running = Node(self._config, self._environment, RealDisk(), self._watch)
            begun_s = self._loop.time()
            try:
                address = await node.start()
                self._announce(address)
                message = await node.failure
                if node.offline is None:
                    raise ConfigError(message)
            except (ConfigError, KafkaError, OSError):
                if not self._was_ready or node.directory is None or node.directory.failure is None:
                    raise
            if self._loop.time() - begun_s > _STEADY_S:
                self._pause_s = _FIRST_PAUSE_S
            await self._wait_for_disk(node)

    async def _wait_for_disk(self, node: Node) -> None:
        failure = node.offline or (node.directory.failure if node.directory is not None else None)
        assert failure is not None
        _log.error("node_offline reason=%s: the other nodes take over until the disk works again", failure.reason)
        apis = node.broker.apis if node.broker is not None else ()
        await node.stop()
        offline = self._running = OfflineNode(
            self._config, self._environment, RealDisk(), failure, apis=apis, probe=self._watch
        )
        # The controller that does not know yet that this broker is gone finds out by its refused connections.
        session_s = self._config[cluster.BROKER_SESSION_TIMEOUT_MS] / 1000
        try:
            await offline.wait_until_usable(self._pause_s, silent_seconds=0.0 if node.controller_knows else session_s)
        finally:
            offline.close()
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _announce(self, address: str) -> None:
        if self._was_ready:
            _log.info("node_online again")
            return
        self._was_ready = True
        _calm_garbage_collector()
        self._ready(address)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not on every platform; slower, but the same
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError) as error:
            _log.warning("file_limit_kept limit=%d error=%s", soft, error)


def _calm_garbage_collector() -> None:
    """What lives since the start is left out of every collection, and collections become rare: see docs/DESIGN.md."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1_000)
