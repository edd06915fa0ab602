"""No request holds the event loop: for every API, the longest requests that it admits, to a real node in this process.

What is measured is work, not time: the calls of functions in one turn of the loop. So a busy machine changes nothing.
"""

import asyncio
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from millstream.config.loading import load_broker_config
from millstream.node.runtime.disk import RealDisk
from millstream.node.runtime.node import Node
from millstream.node.runtime.real_environment import real_environment
from millstream.testing.node_process import HOST, free_ports
from tests import wire
from tests.unit.node.server import hostile
from tests.waiting import TIMEOUT_SECONDS

ROWS = 2_000
MOST_CALLS = 36_000
"""In one turn: some ten milliseconds."""
WHOLE = frozenset(("fetch", "produce", "share_fetch", "share_group_heartbeat", "write_share_group_state"))
"""Handled in one turn: sessions, and what is one record in a log. They have bounds on their rows (docs/DESIGN.md), so
what matters is that a row costs little."""
MOST_CALLS_PER_ROW = 80
_TURN: CodeType = asyncio.Handle._run.__code__
PING = wire.framed(wire.request("api_versions", 0, {}))


class Work:
    """Counts the calls in each turn of the loop while it is entered."""

    def __init__(self) -> None:
        self._turns: list[int] = []
        self._end_turn: Callable[[], None] = lambda: None

    def __enter__(self) -> "Work":
        turns, calls = self._turns, 0

        def end_turn() -> None:
            nonlocal calls
            turns.append(calls)
            calls = 0

        def note(frame: FrameType, event: str, _: Any) -> None:  # called millions of times: no attributes
            nonlocal calls
            if event == "c_call":
                calls += 1
            elif event == "call":
                if frame.f_code is _TURN:
                    end_turn()
                else:
                    calls += 1

        self._end_turn = end_turn
        sys.setprofile(note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        self._end_turn()

    @property
    def most(self) -> int:
        """The calls in the longest turn."""
        return max(self._turns)


class Running:
    """A node with a controller, in this thread."""

    def __init__(self, directory: Path) -> None:
        self.loop = asyncio.new_event_loop()
        client_port, controller_port = free_ports(2)
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://{HOST}:{client_port},CONTROLLER://{HOST}:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@{HOST}:{controller_port}",
            "auto.create.topics.enable": "false",
            "millstream.hot.keys.enable": "false",
            "offsets.topic.num.partitions": "2",
        }
        overrides = [f"{name}={value}" for name, value in settings.items()]
        config = load_broker_config(overrides=overrides, data_dir=str(directory))
        self.node = Node(config, real_environment(self.loop), RealDisk())
        self.loop.run_until_complete(self.node.start())
        assert self.node.broker is not None and self.node.controller is not None
        self.ports = {each.name: controller_port for each in self.node.controller.apis.table()}
        self.ports |= {each.name: client_port for each in self.node.broker.apis}
        self.client_port = client_port
        self.run(self.call("create_topics", 7, {"topics": [_new_topic(hostile.TOPIC)], "timeout_ms": 10_000}))
        for kind in (0, 1, 2):  # the internal topics
            self.run(self.call("find_coordinator", 6, {"key_type": kind, "coordinator_keys": ["g:AAAA:0"]}))

    def run(self, scene: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(scene, TIMEOUT_SECONDS))

    async def call(self, api: str, version: int, fields: dict[str, Any]) -> bytes | None:
        """The response's frame; None if the connection was closed instead."""
        return await self.ask(api, wire.framed(wire.request(api, version, fields)))

    async def ask(self, api: str, data: bytes) -> bytes | None:
        reader, writer = await asyncio.open_connection(HOST, self.ports.get(api, self.client_port))
        try:
            writer.write(data)
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            return await reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        finally:
            writer.close()

    def stop(self) -> None:
        self.loop.run_until_complete(self.node.stop())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


def _new_topic(name: str) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    node = Running(tmp_path_factory.mktemp("node"))
    yield node
    node.stop()


@pytest.mark.parametrize("api", sorted(wire.request_names().values()))
def test_no_request_does_much_in_one_turn(running: Running, api: str) -> None:
    is_offered = api in running.ports
    too_long = {}
    for label, version, fields in hostile.requests(api, ROWS):
        frame = wire.framed(wire.request(api, version, fields))
        with Work() as work:
            response = running.run(running.ask(api, frame))
        assert is_offered or response is None, f"{api} is not in the table, and has a response"
        if work.most > (ROWS * MOST_CALLS_PER_ROW if api in WHOLE else MOST_CALLS):
            too_long[f"{label} v{version}"] = work.most
        if not is_offered:
            break
    assert not too_long, f"calls in the longest turn: {too_long}"


def test_others_are_served_while_a_long_request_is_under_way(running: Running) -> None:
    """By the order of events: client and node share one loop."""
    rows = [{"name": f"t{number}", "partitions": [{"partition_index": 0}]} for number in range(5000)]
    pings = 0

    async def scene() -> int:
        nonlocal pings
        long = asyncio.ensure_future(running.call("list_offsets", 11, {"topics": rows, "replica_id": -1}))
        reader, writer = await asyncio.open_connection(HOST, running.client_port)
        while not long.done():
            writer.write(PING)
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            await reader.readexactly(size)
            pings += 1
        writer.close()
        assert await long is not None
        return pings

    # 15,000 items read and written and 20 parts: without slices it would be one or two.
    assert running.run(scene()) > 10
