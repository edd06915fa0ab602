"""Ports for nodes that come back where they were: free now, and given to nobody else who asks here.

Chosen from below the range that systems give to outgoing connections, so that no client of a node that is down for a
moment is given its port. A process takes one block of ports for itself, by a lock on a file that ends with it: two
programs of tests that start clusters at the same time never choose the same ones.
"""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

HOST = "127.0.0.1"
_FIRST = 20_000
_BLOCK_PORTS = 100
_BLOCKS = 120


class _Block:
    """A process's own ports, handed out in turn: one that was given is long in use, or over, when its turn comes."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.first = _lock_a_block()
        self._turn = 0

    def next_free(self) -> int:
        for _ in range(_BLOCK_PORTS):
            port = self.first + self._turn % _BLOCK_PORTS
            self._turn += 1
            try:
                socket.create_server((HOST, port)).close()
            except OSError:
                continue  # taken
            return port
        raise OSError(f"no port from {self.first} to {self.first + _BLOCK_PORTS - 1} is free: stop what listens there")


def _lock_a_block() -> int:
    """Its first port. The locked file stays open until the process ends, and the lock with it."""
    directory = Path(tempfile.gettempdir()) / f"millstream-ports-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    chance = random.SystemRandom()
    for block in chance.sample(range(_BLOCKS), _BLOCKS):
        file = os.open(directory / str(block), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            continue
        return _FIRST + block * _BLOCK_PORTS
    raise OSError(f"all blocks of ports are taken: {_BLOCKS} processes have clusters, by the locks in {directory}")


_block: _Block | None = None


def free_ports(count: int) -> list[int]:
    global _block
    if _block is None or _block.pid != os.getpid():  # a forked process has its parent's
        _block = _Block()
    block = _block
    return [block.next_free() for _ in range(count)]


def free_stretch(count: int) -> int:
    """The first of so many free ports in a row."""
    for _ in range(_BLOCK_PORTS):
        ports = free_ports(count)
        if ports[-1] - ports[0] == count - 1:
            return ports[0]
    raise OSError(f"no {count} ports in a row are free: stop what listens there")
