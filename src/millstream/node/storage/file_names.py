"""How files and directories of a log are named, as Kafka names them."""

import re

from millstream.formats.model.identifiers import TopicName, TopicPartition

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
DELETED_DIRECTORY_SUFFIX = "-delete"
STRAY_DIRECTORY_SUFFIX = "-stray"
TEMPORARY_SUFFIX = ".tmp"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)

LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANED_OFFSETS = "cleaner-offset-checkpoint"
TRANSACTION_INDEXES = "transaction-index-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
LOCK = ".lock"

_OFFSET_NAME = re.compile(r"(\d{20})(\.[a-z]+)")
_DIRECTORY_NAME = re.compile(r"([A-Za-z0-9._-]{1,249})-(0|[1-9]\d{0,9})")
_LONGEST_NAME = 255


def offset_file(directory: str, offset: int, suffix: str) -> str:
    """`<directory>/00000000000000000042.log` and its kin."""
    return f"{directory}/{offset:020d}{suffix}"


def parse_offset_file(name: str) -> tuple[int, str] | None:
    """(offset, suffix) of a file named for an offset, or None for any other file."""
    match = _OFFSET_NAME.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def parse_directory(name: str) -> TopicPartition | None:
    """The partition whose log a directory holds, or None for any other directory."""
    match = _DIRECTORY_NAME.fullmatch(name)
    return TopicPartition(TopicName(match[1]), int(match[2])) if match else None


def retired_directory(partition: TopicPartition, unique: str, suffix: str) -> str:
    """The name of a log's directory that is no longer in use: about to be removed, or kept as a stray."""
    tail = f"-{partition.partition}.{unique}{suffix}"
    return partition.topic[: _LONGEST_NAME - len(tail)] + tail
