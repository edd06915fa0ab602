"""What one request costs inside the broker, without sockets: `python -m benchmarks.micro.dispatch`."""

import asyncio
import random
import struct
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from millstream.config.loading import load_broker_config
from millstream.formats.protocol.schema import request_schema
from millstream.formats.records.record import Record, build_batch
from millstream.node.broker.broker import Broker
from millstream.node.metadata.topics import NewTopic
from millstream.node.runtime.disk import RealDisk
from millstream.node.runtime.node import Node
from millstream.node.runtime.real_environment import real_environment
from millstream.node.security.core.changes import AclBinding, create_acls
from millstream.node.server.service import Peer

PRODUCE_VERSION, FETCH_VERSION, COMMIT_VERSION, HEARTBEAT_VERSION = 12, 12, 9, 4
GROUP = "group"
COMMITS_TOGETHER = 5
"""As many as the clients of `benchmarks.compare` have in flight on a connection."""


def frame(key: int, version: int, name: str, body: dict[str, Any]) -> bytearray:
    head = struct.pack(">hhih", key, version, 7, 5) + b"bench" + b"\x00"
    return bytearray(head + request_schema(name).encode(body, version))


def measure(title: str, call: Callable[[], object], count: int, *, of: int = 1) -> None:
    """Prints the time of one of the `of` requests that a call handles."""
    call()
    best = min(_time(call, max(1, count // 5)) for _ in range(5)) / of
    print(f"{title:45} {best * 1e6:8.2f} µs")


def _time(call: Callable[[], object], count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - start) / count


AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def main(count: int = 50_000, acls: int | None = None) -> None:
    """`acls`: with an authorizer and this many ACLs, those of the client among them."""
    settings = ["offsets.topic.num.partitions=1"]
    if acls is not None:
        settings.append(f"authorizer.class.name={AUTHORIZER}")
    with tempfile.TemporaryDirectory() as directory:
        loop = asyncio.new_event_loop()
        config = load_broker_config(listen="127.0.0.1:0", data_dir=directory, overrides=settings)
        node = Node(config, real_environment(loop), RealDisk())
        loop.run_until_complete(node.start())
        broker = node.broker
        assert isinstance(broker, Broker)
        loop.run_until_complete(broker.link.create_topics([NewTopic(name="t", partition_count=1)]))
        peer = Peer("127.0.0.1", 1, "PLAINTEXT")
        if acls is not None:
            loop.run_until_complete(add_acls(node, acls))
        handle = broker.dispatcher.handle
        for size in (100, 16_000):
            batch = build_batch([Record(None, random.randbytes(size), timestamp=1_700_000_000_000)])
            request = frame(
                0,
                PRODUCE_VERSION,
                "produce",
                {
                    "acks": 1,
                    "timeout_ms": 1000,
                    "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": bytes(batch)}]}],
                },
            )
            measure(
                f"produce, one batch of {size} bytes",
                partial(handle, request, 0, len(request), peer),
                count,
            )
        for title, offset in (("fetch at the end, no wait", None), ("fetch of the first 16 KB", 0)):
            position = broker.partitions.find("t", 0).log.log_end_offset if offset is None else offset
            partition = {"partition": 0, "fetch_offset": position, "partition_max_bytes": 16384}
            body = {"max_wait_ms": 0, "min_bytes": 1, "topics": [{"topic": "t", "partitions": [partition]}]}
            request = frame(1, FETCH_VERSION, "fetch", body)
            measure(title, lambda r=request: handle(r, 0, len(r), peer), count)  # type: ignore[misc]
        runtime = loop.run_until_complete(broker.groups.runtime_of(GROUP))
        commit, heartbeat = group_requests()
        for together in (1, COMMITS_TOGETHER):

            def commits(together: int = together) -> None:
                for _ in range(together):
                    handle(commit, 0, len(commit), peer)
                runtime.write_gathered()  # as at the end of a turn of the loop

            measure(f"offset commit, one partition, {together} in a turn", commits, count // together, of=together)
        measure("heartbeat, refused", partial(handle, heartbeat, 0, len(heartbeat), peer), count)
        loop.run_until_complete(node.stop())
        loop.close()


def group_requests() -> tuple[bytearray, bytearray]:
    """A commit and a heartbeat. The commits make the group, which has no members."""
    partitions = [{"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}]
    commit = {
        "group_id": GROUP,
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": "t", "partitions": partitions}],
    }
    heartbeat = {"group_id": GROUP, "generation_id": 1, "member_id": "none"}
    return frame(8, COMMIT_VERSION, "offset_commit", commit), frame(12, HEARTBEAT_VERSION, "heartbeat", heartbeat)


async def add_acls(node: Node, count: int) -> None:
    """ACLs of other principals and topics, and READ and WRITE of the client."""
    assert node.controller is not None
    other = [AclBinding(2, f"topic-{number}", 3, f"User:user-{number % 50}", "*", 3, 3) for number in range(count - 2)]
    own = [AclBinding(2, "t", 3, "User:ANONYMOUS", "*", operation, 3) for operation in (3, 4)]
    await node.controller.active.decide(lambda image, config, randomness: create_acls(image, other + own, randomness))


if __name__ == "__main__":
    print("without an authorizer")
    main()
    print("with 1,000 ACLs")
    main(acls=1000)
