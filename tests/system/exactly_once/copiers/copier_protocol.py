"""What the copiers in Python share: arguments, the lines they tell, chances, and when to stop. See README.md."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

ARGUMENTS = dict(each.split("=", 1) for each in sys.argv[1:])
BOOTSTRAP = ARGUMENTS["bootstrap"]
GROUP = ARGUMENTS["group"]
INPUT = ARGUMENTS["input"]
OUTPUT = ARGUMENTS["output"]
NAME = ARGUMENTS["name"]
PARTITIONS = [int(each) for each in ARGUMENTS["partitions"].split(",") if each]
MAX_RECORDS = int(ARGUMENTS["max_records"])
TIMEOUT_MS = int(ARGUMENTS["timeout_ms"])
CHANCE = random.Random(f"{ARGUMENTS['seed']} {NAME}")
STOPPED = threading.Event()

Record = tuple[int, int, str]
"""Partition, offset, value."""


def _watch_stdin() -> None:
    sys.stdin.read()
    STOPPED.set()


threading.Thread(target=_watch_stdin, daemon=True).start()


def now() -> float:
    return time.monotonic()


def tell(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, "at": now(), **fields}) + "\n")
    sys.stdout.flush()


def tell_assigned(positions: Mapping[int, int | None]) -> None:
    tell("assigned", positions={str(partition): offset for partition, offset in positions.items()})


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Attempt:
    """One transaction: its name, what was decided by chance, and what it tells."""

    _count = 0

    def __init__(self, records: Sequence[Record], since: float) -> None:
        Attempt._count += 1
        self.name = f"{NAME}.{Attempt._count}"
        self.records = records
        self.aborts = CHANCE.random() < float(ARGUMENTS["abort_chance"])
        self._dies_at = None
        if CHANCE.random() < float(ARGUMENTS["death_chance"]):
            self._dies_at = CHANCE.choice(("begun", "sending", "sent", "offsets", "committing"))
        self.offsets: dict[int, int] = {}
        self.starts: dict[int, int] = {}
        for partition, offset, _ in records:
            self.starts.setdefault(partition, offset)
            self.offsets[partition] = offset + 1
        tell("begin", transaction=self.name, since=since, records=records)

    def copy_of(self, value: str) -> bytes:
        return f"{self.name} {value}".encode()

    def at(self, point: str) -> None:
        """Here it may die."""
        if self._dies_at == point:
            if point == "committing":
                threading.Timer(CHANCE.uniform(0, 0.03), die).start()
            else:
                die()

    def tell_offsets(self) -> None:
        tell("offsets", transaction=self.name, offsets={str(each): at for each, at in self.offsets.items()})

    def tell_committing(self) -> None:
        tell("committing", transaction=self.name)
        self.at("committing")

    def tell_committed(self) -> None:
        tell("committed", transaction=self.name)

    def tell_aborted(self) -> None:
        tell("aborted", transaction=self.name)
        tell_assigned(self.starts)
