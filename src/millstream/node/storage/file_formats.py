"""Names of the files and directories of a log, and Kafka's small text files: checkpoints, leader epochs, the topic id.

A text file is `version`, a count, and one line per entry. Reading a damaged one raises `DamagedFileError`: the caller
decides what to do then.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

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
FUTURE_DIRECTORY_SUFFIX = "-future"
BRANCH_DIRECTORY_SUFFIX = "-branch"
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
MOVED = ".moved"
"""In a log that was moved here from another directory of the node: where both have the log, this one counts."""
BRANCH = ".branch"
"""In the log of a branch: where its own records begin (`branching`)."""

_OFFSET_NAME = re.compile(r"(\d{20})(\.[a-z]+)")
_DIRECTORY_NAME = re.compile(r"([A-Za-z0-9._-]{1,249})-(0|[1-9]\d{0,9})")
_FUTURE_NAME = re.compile(r"([A-Za-z0-9._-]{1,249}-\d{1,10})\.[0-9a-f]+-future")
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


def parse_future_directory(name: str) -> TopicPartition | None:
    """The partition that a directory is a copy of, made by a move that is not finished."""
    match = _FUTURE_NAME.fullmatch(name)
    return parse_directory(match[1]) if match else None


def retired_directory(partition: TopicPartition, unique: str, suffix: str) -> str:
    """The name of a log's directory that is not in use: to be removed, kept as a stray, or an unfinished copy."""
    tail = f"-{partition.partition}.{unique}{suffix}"
    return partition.topic[: _LONGEST_NAME - len(tail)] + tail


_VERSION = "0"


class DamagedFileError(ValueError):
    """The file's text is not what its format says."""


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    lines = [_VERSION, str(len(offsets))]
    lines += [f"{partition.topic} {partition.partition} {offset}" for partition, offset in offsets.items()]
    return _encode(lines)


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for line in _entries(data):
        fields = line.split(" ")
        if len(fields) != 3:
            raise DamagedFileError(f"not an entry: {line!r}")
        found[TopicPartition(TopicName(fields[0]), _number(fields[1]))] = _number(fields[2])
    return found


def encode_offset_lists(lists: Mapping[TopicPartition, Iterable[int]]) -> bytes:
    """As many lines for a partition as it has offsets."""
    lines = [f"{at.topic} {at.partition} {offset}" for at, offsets in lists.items() for offset in offsets]
    return _encode([_VERSION, str(len(lines)), *lines])


def decode_offset_lists(data: bytes) -> dict[TopicPartition, list[int]]:
    found: dict[TopicPartition, list[int]] = {}
    for line in _entries(data):
        fields = line.split(" ")
        if len(fields) != 3:
            raise DamagedFileError(f"not an entry: {line!r}")
        found.setdefault(TopicPartition(TopicName(fields[0]), _number(fields[1])), []).append(_number(fields[2]))
    return found


def encode_epochs(epochs: Iterable[tuple[int, int]]) -> bytes:
    """(epoch, start offset) pairs."""
    entries = [f"{epoch} {start}" for epoch, start in epochs]
    return _encode([_VERSION, str(len(entries)), *entries])


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for line in _entries(data):
        fields = line.split(" ")
        if len(fields) != 2:
            raise DamagedFileError(f"not an entry: {line!r}")
        entry = _number(fields[0]), _number(fields[1])
        if found and (entry[0] <= found[-1][0] or entry[1] < found[-1][1]):
            raise DamagedFileError(f"epochs out of order at {line!r}")
        found.append(entry)
    return found


def encode_topic_id(topic_id: UUID) -> bytes:
    text = base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode("ascii")
    return _encode(["version: 0", f"topic_id: {text}"])


def decode_topic_id(data: bytes) -> UUID:
    fields = dict(line.split(": ", 1) for line in _text(data).splitlines() if ": " in line)
    if fields.get("version") != _VERSION or "topic_id" not in fields:
        raise DamagedFileError("no topic id of version 0")
    try:
        return UUID(bytes=base64.urlsafe_b64decode(fields["topic_id"] + "=="))
    except (ValueError, binascii.Error) as error:
        raise DamagedFileError(f"not a topic id: {fields['topic_id']!r}") from error


class BranchFile(NamedTuple):
    """The file `.branch` in the log of a branch."""

    partition: TopicPartition
    offset: int
    """Where its own records begin. Before it are those of the parent."""
    log_start_offset: int
    """Of the parent when the branch was made, until a checkpoint has the start."""
    recovery_point: int = 0
    """Everything below is on stable storage, until a checkpoint has the recovery point."""
    part_base: int = -1
    """The base offset of the one segment that has to be copied up to `part_bytes`; -1 if there is none."""
    part_bytes: int = 0


def encode_branch(branch: BranchFile) -> bytes:
    at = branch.partition
    return _encode(
        [
            "version: 0",
            f"topic: {at.topic}",
            f"partition: {at.partition}",
            *(f"{name}: {getattr(branch, name)}" for name in BranchFile._fields[1:]),
        ]
    )


def decode_branch(data: bytes) -> BranchFile:
    fields = dict(line.split(": ", 1) for line in _text(data).splitlines() if ": " in line)
    try:
        if fields["version"] != _VERSION:
            raise DamagedFileError(f"version {fields['version']} of the file of a branch is not known")
        return BranchFile(
            TopicPartition(TopicName(fields["topic"]), _number(fields["partition"])),
            *(_number(fields[name]) for name in BranchFile._fields[1:]),
        )
    except KeyError as error:
        raise DamagedFileError(f"the file of a branch has no {error}") from error


def _encode(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DamagedFileError("not text") from error


def _entries(data: bytes) -> list[str]:
    lines = _text(data).splitlines()
    if len(lines) < 2 or lines[0] != _VERSION:
        raise DamagedFileError("no checkpoint of version 0")
    if _number(lines[1]) != len(lines) - 2:
        raise DamagedFileError(f"{lines[1]} entries promised, {len(lines) - 2} found")
    return lines[2:]


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise DamagedFileError(f"not a number: {text!r}") from error
