"""Time from process start to the first acknowledged record, and memory of a broker that has just started.

A fresh process on a fresh directory. Kafka's `format` step runs before the clock starts. The client asks over a raw
socket, creating a topic and producing one record, and retries every few milliseconds, so it adds next to nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar

from benchmarks.compare import wire
from benchmarks.compare.measure import Load, Measure, Scale
from benchmarks.compare.process_stat import cpu_seconds, resident_megabytes
from benchmarks.compare.target import Target, TargetFactory

_RETRY_SECONDS = 0.005
_TIMEOUT_SECONDS = 60.0
_SETTLE_SECONDS = 2.0


class Startup(Load):
    name: ClassVar[str] = "startup"
    title: ClassVar[str] = "Start and idle memory"
    measures: Sequence[Measure] = (
        Measure("first_ack", "process start to first acked record", "s", "lower", 0.1),
        Measure("cpu", "broker CPU until it idles", "s", "lower"),
        Measure("rss", "resident memory, idle", "MB", "lower", 0.1),
    )

    def __init__(self, fresh_target: TargetFactory) -> None:
        self._fresh_target = fresh_target

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        fresh = self._fresh_target(target.name)
        fresh.prepare()
        request = wire.produce_request("first", 0, wire.record_batch([b"hello"]))
        started = time.perf_counter()
        try:
            fresh.spawn()
            while not _acknowledged(fresh, request):
                if time.perf_counter() - started > _TIMEOUT_SECONDS:
                    raise RuntimeError(
                        f"{target.name} acknowledged nothing within {_TIMEOUT_SECONDS:.0f} s of its start"
                    )
                time.sleep(_RETRY_SECONDS)
            first_ack_s = time.perf_counter() - started
            time.sleep(scale.seconds(_SETTLE_SECONDS))
            return {"first_ack": first_ack_s, "cpu": cpu_seconds(fresh.pid), "rss": resident_megabytes(fresh.pid)}
        finally:
            fresh.stop()


def _acknowledged(target: Target, request: bytes) -> bool:
    """One attempt: connect, create the topic, produce until it is led or something else goes wrong."""
    try:
        with wire.connect(target.bootstrap, timeout_s=5) as connection:
            wire.ask(connection, wire.create_topic_request("first", 1))
            return wire.produce_error(wire.ask(connection, request), "first") == 0
    except OSError:
        return False
