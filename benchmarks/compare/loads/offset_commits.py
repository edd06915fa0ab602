"""Offset commits as fast as a coordinator takes them: one partition each, on eight connections with five in flight.

The client sends a request encoded once and only counts what comes back, so that the broker is the bottleneck.
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Sequence
from typing import ClassVar

from benchmarks.compare import wire
from benchmarks.compare.measure import Load, Measure, Scale
from benchmarks.compare.target import Target
from benchmarks.compare.topic import temporary_topic

CONNECTIONS = 8
_IN_FLIGHT = 5
_FULL_SECONDS = 3.0
_TIMEOUT_SECONDS = 60.0
_COMMIT, _FIND_COORDINATOR = 8, 10
_COMMIT_VERSION = 2
_GOAL = 1.8


class OffsetCommits(Load):
    name: ClassVar[str] = "offset-commits"
    title: ClassVar[str] = "Offset commits"
    measures: Sequence[Measure] = (
        Measure("commits_s", "offset commits, 8 connections, 5 in flight", "commits/s", "higher", _GOAL),
    )

    def run(self, target: Target, scale: Scale) -> dict[str, float]:
        with temporary_topic(target, partitions=1, expected_bytes=0) as topic:
            _wait_for_coordinator(target.bootstrap, topic)
            commits = _commits_per_second(target.bootstrap, topic, scale.seconds(_FULL_SECONDS))
        return {"commits_s": commits}


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def _request(api: int, version: int, body: bytes) -> bytes:
    content = struct.pack(">hhi", api, version, 1) + _text("bench") + body
    return struct.pack(">i", len(content)) + content


def _commit_request(group: str, topic: str) -> bytes:
    partition = struct.pack(">iq", 0, 42) + _text("")
    topics = struct.pack(">i", 1) + _text(topic) + struct.pack(">i", 1) + partition
    return _request(
        _COMMIT, _COMMIT_VERSION, _text(group) + struct.pack(">i", -1) + _text("") + struct.pack(">q", -1) + topics
    )


def _commit_error(response: bytes) -> int:
    """The last field of the response is the error of its only partition."""
    error: int = struct.unpack(">h", response[-2:])[0]
    return error


def _wait_for_coordinator(bootstrap: str, topic: str) -> None:
    """Kafka makes its internal topic when it is first asked for a coordinator, and refuses requests meanwhile."""
    with wire.connect(bootstrap) as connection:
        until = time.monotonic() + _TIMEOUT_SECONDS
        while time.monotonic() < until:
            wire.ask(connection, _request(_FIND_COORDINATOR, 0, _text("bench")))
            responses = (wire.ask(connection, _commit_request(f"bench-{number}", topic)) for number in range(150))
            if not any(_commit_error(response) for response in responses):
                return
            time.sleep(0.2)
    raise RuntimeError("no coordinator became available")


def _commits_per_second(bootstrap: str, topic: str, seconds: float) -> float:
    connections = [wire.connect(bootstrap) for _ in range(CONNECTIONS)]
    requests = {each: _commit_request(f"bench-{number}", topic) for number, each in enumerate(connections)}
    try:
        sizes = {len(wire.ask(each, requests[each])) + 4 for each in connections}
        (size,) = sizes  # nothing in the response varies in length
        pending = dict.fromkeys(connections, 0)
        buffer = bytearray(size * _IN_FLIGHT)
        responses = 0
        started = time.perf_counter()
        for each in connections:
            each.sendall(requests[each] * _IN_FLIGHT)
        while time.perf_counter() - started < seconds:
            for each in select.select(connections, [], [], 1.0)[0]:
                complete, pending[each] = divmod(pending[each] + each.recv_into(buffer), size)
                responses += complete
                each.sendall(requests[each] * complete)
        elapsed = time.perf_counter() - started
        for each in connections:  # what is still under way; the last response is looked into
            rest = memoryview(bytearray(size * _IN_FLIGHT - pending[each]))
            wire.receive_exactly(each, rest)
            if error := _commit_error(bytes(rest)):
                raise RuntimeError(f"OffsetCommit responded with error {error}")
        return responses / elapsed
    finally:
        for each in connections:
            each.close()
