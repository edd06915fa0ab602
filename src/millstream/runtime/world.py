"""The real world for a node: the system's clock, sockets, threads for what may block."""

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from millstream.environment import Environment
from millstream.net.network import SocketNetwork
from millstream.runtime.clock import SystemClock

_THREADS = 4
T = TypeVar("T")


def real_environment(loop: asyncio.AbstractEventLoop) -> Environment:
    """An environment on this loop; its threads end with the loop's executor (`loop.shutdown_default_executor`)."""
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="millstream")
    loop.set_default_executor(threads)

    def offload(function: Callable[[], T]) -> "asyncio.Future[T]":
        return loop.run_in_executor(threads, function)

    return Environment(SystemClock(), loop, offload, random.Random(), SocketNetwork(loop))
