"""Voter sets, and the history of such sets by log offset.

The set in force is the latest *appended*, committed or not (as in KRaft and in Raft's single-server changes);
truncating the log restores the earlier one.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import field, replace
from typing import Generic, TypeVar
from uuid import UUID

from millstream.common.lazy_dataclass import dataclass

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReplicaKey:
    """A replica is a node *and* its disk: a node that lost its disk is another replica, and must not vote as before."""

    id: int
    directory_id: UUID | None = None
    """None if unknown: static voters (kraft.version 0) are named by their id alone."""

    def __str__(self) -> str:
        return f"{self.id}" if self.directory_id is None else f"{self.id}@{self.directory_id}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One listener of a voter."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Voter:
    """One member of a voter set, with its endpoints and the kraft.versions it supports."""

    key: ReplicaKey
    endpoints: tuple[Endpoint, ...] = ()
    min_kraft_version: int = 0
    max_kraft_version: int = 1

    @property
    def id(self) -> int:
        return self.key.id


@dataclass(frozen=True)
class VoterSet:
    """Voters by node id, ordered by id."""

    voters: tuple[Voter, ...] = ()
    by_id: dict[int, Voter] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        ordered = tuple(sorted(self.voters, key=lambda voter: voter.id))
        object.__setattr__(self, "voters", ordered)
        object.__setattr__(self, "by_id", {voter.id: voter for voter in ordered})
        assert len(self.by_id) == len(ordered), "a node id occurs twice in a voter set"

    def __iter__(self) -> Iterator[Voter]:
        return iter(self.voters)

    def __len__(self) -> int:
        return len(self.voters)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(voter.id for voter in self.voters)

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def has(self, key: ReplicaKey) -> bool:
        """Whether this replica votes: its directory must match where the set names one."""
        voter = self.by_id.get(key.id)
        return voter is not None and voter.key.directory_id in (None, key.directory_id)

    def with_voter(self, voter: Voter) -> "VoterSet":
        """This set with `voter` added, or instead of the voter of the same id."""
        return VoterSet((*(other for other in self.voters if other.id != voter.id), voter))

    def without(self, node_id: int) -> "VoterSet":
        return VoterSet(tuple(other for other in self.voters if other.id != node_id))

    def with_directories(self, directories: dict[int, UUID]) -> "VoterSet":
        """This set with the directory ids that are known."""
        return VoterSet(
            tuple(
                replace(voter, key=ReplicaKey(voter.id, directories.get(voter.id, voter.key.directory_id)))
                for voter in self.voters
            )
        )


class OffsetHistory(Generic[T]):
    """Values by the offset of the record that set them, and the value before any record."""

    def __init__(self, initial: T) -> None:
        self._offsets: list[int] = []
        self._values: list[T] = [initial]

    @property
    def latest(self) -> T:
        return self._values[-1]

    @property
    def latest_offset(self) -> int:
        """Offset of the record that set the value in force; -1 for the initial one."""
        return self._offsets[-1] if self._offsets else -1

    def at(self, end_offset: int) -> T:
        """The value set by the records below `end_offset`."""
        return self._values[bisect_left(self._offsets, end_offset)]

    def add(self, offset: int, value: T) -> None:
        assert offset > self.latest_offset or not self._offsets, "control records come in the order of the log"
        self._offsets.append(offset)
        self._values.append(value)

    def truncate_to(self, end_offset: int) -> None:
        """Forget the values of records from `end_offset` on."""
        kept = bisect_left(self._offsets, end_offset)
        del self._offsets[kept:]
        del self._values[kept + 1 :]

    def forget_before(self, start_offset: int) -> None:
        """Drop values from before `start_offset`, where the log begins now, except the one in force there."""
        dropped = max(0, bisect_left(self._offsets, start_offset) - 1)
        del self._offsets[:dropped]
        del self._values[1 : dropped + 1]
