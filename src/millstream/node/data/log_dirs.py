"""DescribeLogDirs (35): the size of each partition in each log directory of this node, and the state of its disk.

AlterReplicaLogDirs (34): moves replicas between the log directories of this node.
"""

import asyncio
from collections.abc import Callable, Iterable

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName, TopicPartition
from millstream.formats.protocol.wire_types import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirsResponseResultsPartitions,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResponseResults,
    DescribeLogDirsResponseResultsTopicsPartitions,
)
from millstream.node.environment import Environment
from millstream.node.replicas.directory_moves import DirectoryMoves
from millstream.node.replicas.partition_table import PartitionTable
from millstream.node.server.request import Context
from millstream.node.storage.log.directories import LogDirectories, is_cordoned
from millstream.node.storage.log.directory import LogDirectory

_TURN = 200  # partitions in one turn of the event loop
_UNKNOWN_BYTES = -1

Rows = dict[str, list[DescribeLogDirsResponseResultsTopicsPartitions]]


class LogDirHandlers:
    def __init__(
        self,
        partitions: PartitionTable,
        environment: Environment,
        logs: LogDirectories,
        moves: DirectoryMoves,
        cordoned: Callable[[], tuple[str, ...]],
    ) -> None:
        self._partitions = partitions
        self._cordoned = cordoned
        self._environment = environment
        self._logs = logs
        self._moves = moves

    # Describing

    async def describe_log_dirs(self, request: DescribeLogDirsRequest, context: Context) -> DescribeLogDirsResponse:
        wanted = None
        if request.topics is not None:
            wanted = {(topic.topic, index) for topic in request.topics for index in topic.partitions}
        found = await self._sizes(wanted)
        results: list[DescribeLogDirsResponseResults] = []
        for directory in tuple(self._logs.data):
            if not self._logs.is_online(directory) or directory.health.failure is not None:
                results.append(offline_directory(directory.root))
                continue
            try:
                space = await self._environment.offload(lambda: self._logs.disk.space(directory.root))  # noqa: B023
            except OSError:
                results.append(offline_directory(directory.root))
                continue
            results.append(
                {
                    "error_code": ErrorCode.NONE,
                    "log_dir": directory.root,
                    "topics": [
                        {"name": name, "partitions": rows} for name, rows in found.get(directory.root, {}).items()
                    ],
                    "total_bytes": space.total_bytes,
                    "usable_bytes": space.usable_bytes,
                    "is_cordoned": self._is_cordoned(directory),
                }
            )
        return {"results": results}

    async def _sizes(self, wanted: set[tuple[str, int]] | None) -> dict[str, Rows]:
        """The rows of each directory, by its path."""
        found: dict[str, Rows] = {}
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
            place = self._logs.place_of(partition.topic_partition)
            if place is not None:
                found.setdefault(place.root, {}).setdefault(name, []).append(
                    {"partition_index": index, "partition_size": size, "offset_lag": 0, "is_future_key": False}
                )
        for move in self._moves:
            name, index = move.log.topic_partition
            if wanted is None or (name, index) in wanted:
                found.setdefault(move.target.root, {}).setdefault(name, []).append(
                    {
                        "partition_index": index,
                        "partition_size": move.copied_bytes,
                        "offset_lag": move.offset_lag,
                        "is_future_key": True,
                    }
                )
        return found

    def _is_cordoned(self, directory: LogDirectory) -> bool:
        cordoned = self._cordoned()
        return is_cordoned(directory.root, cordoned) or (len(self._logs.data) == 1 and bool(cordoned))

    # Moving

    async def alter_replica_log_dirs(
        self, request: AlterReplicaLogDirsRequest, context: Context
    ) -> AlterReplicaLogDirsResponse:
        results: dict[str, list[AlterReplicaLogDirsResponseResultsPartitions]] = {}
        count = 0
        for row in request.dirs:
            for topic in row.topics:
                for index in topic.partitions:
                    count += 1
                    if count % _TURN == 0:
                        await asyncio.sleep(0)
                    code = self._move(TopicPartition(TopicName(topic.name), index), row.path)
                    results.setdefault(topic.name, []).append({"partition_index": index, "error_code": code})
        return {"results": [{"topic_name": name, "partitions": rows} for name, rows in results.items()]}

    def _move(self, at: TopicPartition, path: str) -> ErrorCode:
        directory = self._logs.by_root(path.rstrip("/") or path)
        if directory is None:
            return ErrorCode.LOG_DIR_NOT_FOUND
        if not self._logs.is_online(directory):
            return ErrorCode.KAFKA_STORAGE_ERROR
        home = self._logs.place_of(at)
        if self._is_cordoned(directory) and home is not directory:
            return ErrorCode.INVALID_REPLICA_ASSIGNMENT
        try:
            partition = self._partitions.find(at.topic, at.partition)
        except KafkaError:
            # As in Kafka: a replica that this broker gets later goes there. `kafka-reassign-partitions` relies on it.
            self._logs.prefer(at, directory)
            return ErrorCode.REPLICA_NOT_AVAILABLE
        if partition.is_log_offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        self._moves.begin(partition, directory)
        return ErrorCode.NONE


def offline_directory(directory: str) -> DescribeLogDirsResponseResults:
    """The row of a directory that has failed."""
    return {
        "error_code": ErrorCode.KAFKA_STORAGE_ERROR,
        "log_dir": directory,
        "topics": [],
        "total_bytes": _UNKNOWN_BYTES,
        "usable_bytes": _UNKNOWN_BYTES,
        "is_cordoned": False,
    }


def offline_directories(directories: Iterable[str]) -> DescribeLogDirsResponse:
    """The response of a node that is offline."""
    return {"results": [offline_directory(each) for each in directories]}
