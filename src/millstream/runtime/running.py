"""A node in a process of its own: the event loop, signals, limits, and the way out."""

import asyncio
import gc
import logging
import resource
import signal
import sys
from collections.abc import Callable

from millstream.config.broker_config import BrokerConfig
from millstream.config.errors import ConfigError
from millstream.runtime.disk import RealDisk
from millstream.runtime.node import Node
from millstream.runtime.process_probe import ProcessWatch
from millstream.runtime.world import real_environment

_log = logging.getLogger("millstream.node")
_SWITCH_SECONDS = 0.0005


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
        loop.run_until_complete(_live(Node(config, environment, RealDisk(), watch), ready, leaving, loop))
    finally:
        watch.close()
        loop.close()
    return 0


async def _live(
    node: Node, ready: Callable[[str], None], leaving: Callable[[], None], loop: asyncio.AbstractEventLoop
) -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await asyncio.sleep(0)
    asked_to_stop = asyncio.ensure_future(stopping.wait())
    try:
        starting = asyncio.ensure_future(node.start())
        await asyncio.wait((starting, asked_to_stop), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return
        address = starting.result()
        _calm_garbage_collector()
        ready(address)
        await asyncio.wait((asked_to_stop, node.failure), return_when=asyncio.FIRST_COMPLETED)
        if node.failure.done():
            raise ConfigError(node.failure.result())
    finally:
        asked_to_stop.cancel()
        await loop.run_in_executor(None, leaving)
        await node.stop()


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
