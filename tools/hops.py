"""Counts the files that a request passes on its way to storage: `python tools/hops.py [--list]`.

A node runs in this process. Requests come to it over a socket. From the moment its connection has the bytes until the
log takes the batch, each Python function that runs on the event loop is noted, with its file. The count is of the files
in `src/millstream/node`, without `node/storage`: these are the files to open to follow the request. `formats` and
`config`, which encode and hold values, are listed apart. A constructor alone does not count, whether it is written or
made by `dataclass`: what the new object does counts with its methods. Work that happens by chance at the same time
(timers, other connections) is left out: each request is sent several times, and only files that all of them passed
count.

A fetch appends nothing: its way ends where the log is read.
"""

import argparse
import asyncio
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from struct import Struct
from types import CodeType, FrameType
from typing import Any

import millstream
from millstream import compilation
from millstream.config.loading import load_broker_config
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message, request_schema, response_schema
from millstream.formats.records.record import Record, build_batch
from millstream.node.runtime.disk import RealDisk
from millstream.node.runtime.node import Node
from millstream.node.runtime.real_environment import real_environment
from millstream.node.storage.log.partition_log import PartitionLog

SOURCE = Path(millstream.__file__).parent
NODE = "node/"
STORAGE = "node/storage/"
RUNS = 5
LIMITS = {
    "produce": 12,
    "fetch": 12,
    "join (classic protocol)": 12,
    "join (consumer protocol)": 12,
    "end of a transaction": 14,
    "creation of a topic": 20,
}
"""The most files that a request may pass."""
_NOT_READY = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)
_SIZE = Struct(">i")
_HEADER = Struct(">hhih")


class Trace:
    """The files of the functions that run, in the order of their first call, until one of the ends is called."""

    def __init__(self) -> None:
        self._ends: set[CodeType] = set()
        self._files: dict[str, None] = {}
        self._on = False

    def begin(self, ends: set[CodeType]) -> None:
        self._ends, self._files, self._on = ends, {}, True

    def stop(self) -> list[str]:
        if self._on:
            raise RuntimeError("the request did not reach storage")
        return list(self._files)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if not self._on or event != "call":
            return
        code = frame.f_code
        if code in self._ends:
            self._on = False
        elif code.co_filename.startswith(str(SOURCE)) and code.co_name != "__init__":
            name = code.co_filename[len(str(SOURCE)) + 1 :]
            if not name.startswith(STORAGE):
                self._files.setdefault(name)


class TracedNode:
    """A node on an event loop in a thread, and a connection to it."""

    def __init__(self, directory: str) -> None:
        self._loop = asyncio.new_event_loop()
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        settings = ["group.initial.rebalance.delay.ms=0"]
        config = load_broker_config(listen=address, data_dir=directory, overrides=settings)
        self._node = Node(config, real_environment(self._loop), RealDisk())
        self._trace = Trace()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._wait_for(self._node.start())
        self._socket = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 30)
        self._input = self._socket.makefile("rb")

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        sys.setprofile(self._trace)
        self._loop.run_forever()

    def _wait_for(self, work: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def request(self, name: str, version: int, body: dict[str, Any]) -> Message:
        schema = request_schema(name)
        head = _HEADER.pack(schema.api_key, version, 7, 4) + b"hops" + (b"\0" if schema.is_flexible(version) else b"")
        payload = head + schema.encode(body, version)
        self._socket.sendall(_SIZE.pack(len(payload)) + payload)
        response = self._input.read(_SIZE.unpack(self._input.read(_SIZE.size))[0])
        return response_schema(name).decode(response[5 if schema.is_flexible(version) else 4 :], version)

    def request_until_ready(self, name: str, version: int, body: dict[str, Any]) -> Message:
        """As `request`, again while the coordinator is not there yet: its topic is made by the first request."""
        for _ in range(600):
            response = self.request(name, version, body)
            if response.error_code not in _NOT_READY:
                return response
            time.sleep(0.1)
        raise RuntimeError(f"{name}: no coordinator after a minute")

    def path(self, send: Callable[[int], object], end: Callable[..., Any]) -> list[str]:
        """The files that every one of some requests passed; `send` sends the request of that number."""
        paths = []
        for number in range(RUNS):
            self._trace.begin({end.__code__})
            send(number)
            paths.append(self._trace.stop())
        return [file for file in paths[-1] if all(file in path for path in paths)]

    def close(self) -> None:
        self._input.close()
        self._socket.close()
        self._wait_for(self._node.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def measure(node: TracedNode) -> dict[str, list[str]]:
    """The files that each kind of request passes, in the order of their first call."""
    node.request("create_topics", 7, {"topics": [{"name": "t", "num_partitions": 1, "replication_factor": 1}]})
    paths: dict[str, list[str]] = {}

    def produce(number: int) -> None:
        batch = bytes(build_batch([Record(None, b"%d" % number, timestamp=1_700_000_000_000)]))
        data = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
        node.request("produce", 12, {"acks": -1, "timeout_ms": 1000, "topic_data": data})

    def fetch(number: int) -> None:
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        body = {"max_wait_ms": 0, "min_bytes": 1, "topics": [{"topic": "t", "partitions": [partition]}]}
        node.request("fetch", 12, body)

    def join(number: int) -> None:
        group = {"group_id": f"classic-{number}", "protocol_type": "consumer"}
        protocols = [{"name": "range", "metadata": b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"}]
        times = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}
        member = node.request("join_group", 5, {**group, **times, "member_id": "", "protocols": protocols}).member_id
        joined = node.request("join_group", 5, {**group, **times, "member_id": member, "protocols": protocols})
        assignments = [{"member_id": member, "assignment": b""}]
        body = {**group, "generation_id": joined.generation_id, "member_id": member, "assignments": assignments}
        node.request("sync_group", 4, body)

    def heartbeat(number: int) -> None:
        body = {"group_id": f"consumer-{number}", "member_id": f"m{number}", "member_epoch": 0}
        details = {"rebalance_timeout_ms": 10_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
        node.request_until_ready("consumer_group_heartbeat", 1, {**body, **details})

    def create(number: int) -> None:
        topic = {"name": f"new-{number}", "num_partitions": 1, "replication_factor": 1}
        node.request("create_topics", 7, {"topics": [topic], "timeout_ms": 10_000})

    node.request("find_coordinator", 4, {"key_type": 0, "coordinator_keys": ["any"]})
    node.request("find_coordinator", 4, {"key_type": 1, "coordinator_keys": ["any"]})
    producers = []
    for number in range(RUNS):
        start = {"transactional_id": f"tx-{number}", "transaction_timeout_ms": 60_000}
        started = node.request_until_ready("init_producer_id", 4, start)
        producer = {"producer_id": started.producer_id, "producer_epoch": started.producer_epoch}
        producers.append({"transactional_id": f"tx-{number}", **producer})
        transaction = {**producers[-1], "topics": [{"name": "t", "partitions": [0]}]}
        node.request("add_partitions_to_txn", 4, {"transactions": [transaction]})

    def end(number: int) -> None:
        node.request("end_txn", 3, {**producers[number], "committed": True})
        asked = {"transactional_ids": [producers[number]["transactional_id"]]}
        # The markers are written after the response. The next transaction is not to be traced with them.
        while (
            node.request("describe_transactions", 0, asked).transaction_states[0].transaction_state != "CompleteCommit"
        ):
            time.sleep(0.05)

    heartbeat(RUNS)  # The coordinator's topic is made, and the coordinator has loaded it.
    paths["produce"] = node.path(produce, PartitionLog.append)
    paths["fetch"] = node.path(fetch, PartitionLog.read)
    paths["join (classic protocol)"] = node.path(join, PartitionLog.append)
    paths["join (consumer protocol)"] = node.path(heartbeat, PartitionLog.append)
    paths["end of a transaction"] = node.path(end, PartitionLog.append)
    paths["creation of a topic"] = node.path(create, PartitionLog.append_as_follower)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="also list the files, in the order of their first call")
    listed = parser.parse_args().list
    if compilation.is_compiled():
        # Compiled functions cannot be traced.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, compilation.VARIABLE: compilation.REFUSE})
    with tempfile.TemporaryDirectory() as directory:
        node = TracedNode(directory)
        try:
            paths = measure(node)
        finally:
            node.close()
    for name, files in paths.items():
        own = [file for file in files if file.startswith(NODE)]
        print(f"{name:26} {len(own):3} files of the node (at most {LIMITS[name]}), {len(files) - len(own)} of others")
        if listed:
            print("".join(f"    {file}\n" for file in [*own, *(file for file in files if file not in own)]))


if __name__ == "__main__":
    main()
