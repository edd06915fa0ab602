"""What the Python members share: arguments, the lines they tell, and when to stop."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable
from typing import Any

BOOTSTRAP, GROUP, TOPIC = sys.argv[1:4]
OPTIONS: dict[str, Any] = json.loads(sys.argv[4])
STOPPED = threading.Event()


def _watch_stdin() -> None:
    sys.stdin.read()
    STOPPED.set()


threading.Thread(target=_watch_stdin, daemon=True).start()


def _tell(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def tell_assigned(partitions: Iterable[int]) -> None:
    _tell({"assigned": sorted(partitions)})


def tell_record(partition: int, offset: int, value: bytes) -> None:
    _tell({"record": [partition, offset, value.decode()]})
