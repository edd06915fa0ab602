"""DescribeLogDirs (35): the size of each partition on this node's disk, and the state of that disk."""

import asyncio
import os
from collections.abc import Callable

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.wire_types import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResponseResults,
    DescribeLogDirsResponseResultsTopicsPartitions,
)
from millstream.node.environment import Environment
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.server.request import Context
from millstream.node.storage.directory_health import DirectoryHealth

_TURN = 200  # partitions in one turn of the event loop
_UNKNOWN_BYTES = -1


class LogDirHandlers:
    def __init__(
        self,
        partitions: PartitionTable,
        environment: Environment,
        health: DirectoryHealth,
        is_cordoned: Callable[[], bool],
    ) -> None:
        self._partitions = partitions
        self._is_cordoned = is_cordoned
        self._environment = environment
        self._health = health
        self._directory = health.root

    async def describe_log_dirs(self, request: DescribeLogDirsRequest, context: Context) -> DescribeLogDirsResponse:
        if self._health.failure is not None:
            return offline_directory(self._directory)
        wanted = None
        if request.topics is not None:
            wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
        topics: dict[str, list[DescribeLogDirsResponseResultsTopicsPartitions]] = {}
        for count, partition in enumerate(list(self._partitions)):
            name, index = partition.topic_partition
            if wanted is not None and (name, index) not in wanted:
                continue
            if count % _TURN == _TURN - 1:
                await asyncio.sleep(0)
            try:
                size = (await partition.open()).size_bytes
            except KafkaError:
                continue
            topics.setdefault(name, []).append(
                {"partition_index": index, "partition_size": size, "offset_lag": 0, "is_future_key": False}
            )
        space = await self._environment.offload(lambda: os.statvfs(self._directory))
        return {
            "results": [
                {
                    "error_code": ErrorCode.NONE,
                    "log_dir": self._directory,
                    "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
                    "total_bytes": space.f_blocks * space.f_frsize,
                    "usable_bytes": space.f_bavail * space.f_frsize,
                    "is_cordoned": self._is_cordoned(),
                }
            ]
        }


def offline_directory(directory: str) -> DescribeLogDirsResponse:
    """The response for a directory that has failed."""
    row: DescribeLogDirsResponseResults = {
        "error_code": ErrorCode.KAFKA_STORAGE_ERROR,
        "log_dir": directory,
        "topics": [],
        "total_bytes": _UNKNOWN_BYTES,
        "usable_bytes": _UNKNOWN_BYTES,
        "is_cordoned": False,
    }
    return {"results": [row]}
