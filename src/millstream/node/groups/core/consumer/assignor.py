"""What an assignor is given and gives. It is a pure function; which ones there are is in `ASSIGNORS` of `assignors`."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from millstream.node.groups.core.consumer.assignment import Target


class MemberSpec(NamedTuple):
    id: str
    instance_id: str | None
    rack: str | None
    topics: frozenset[UUID]
    """Those it reads that exist."""
    current: Target
    """What it has in the target that is to be replaced."""


class TopicSpec(NamedTuple):
    partition_count: int
    racks: Sequence[frozenset[str]]
    """For each partition, where its replicas are; empty sets if that is not known."""


Assignor = Callable[[Sequence[MemberSpec], Mapping[UUID, TopicSpec]], dict[str, Target]]
"""A target for every member; each partition that somebody reads is in exactly one of them."""


def racks_matter(members: Sequence[MemberSpec], topics: Mapping[UUID, TopicSpec]) -> bool:
    """Whether it makes a difference who gets a partition: not if each partition is in the racks of all members."""
    racks = frozenset(member.rack for member in members if member.rack is not None)
    if not racks:
        return False
    return any(here and not racks <= here for topic in topics.values() for here in topic.racks)
