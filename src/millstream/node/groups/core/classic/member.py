"""A member of a classic group: what it can do, what it was given, and what it waits for."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millstream.node.coordination.core.outcome import Reply

Answer = dict[str, Any]


class Protocol(NamedTuple):
    """A way to assign that a member knows, and what it tells the leader about itself."""

    name: str
    metadata: bytes


class Client(NamedTuple):
    """Who stands behind a request, as DescribeGroups shows it."""

    client_id: str
    host: str


@dataclass(slots=True, eq=False)
class Member:
    id: str
    instance_id: str | None
    client: Client
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[Protocol, ...]
    """In order of preference."""
    assignment: bytes = b""
    is_new: bool = False
    """It has not had an answer to its first JoinGroup: it cannot send heartbeats, so its session is not the measure."""
    joining: Reply[Answer] | None = field(default=None, repr=False)
    """The JoinGroup that waits."""
    syncing: Reply[Answer] | None = field(default=None, repr=False)
    """The SyncGroup that waits."""
    expires_at_ms: int = 0
    alarm_at_ms: int | None = None
    """When the timer rings that looks whether it has expired; None if there is none."""

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def is_joining(self) -> bool:
        return self.joining is not None

    @property
    def cannot_expire(self) -> bool:
        """While it waits for others, it is alive as far as we know."""
        return not self.is_new and (self.joining is not None or self.syncing is not None)

    def metadata(self, protocol: str | None) -> bytes:
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def answer_join(self, answer: Answer) -> None:
        waiting, self.joining = self.joining, None
        if waiting is not None:
            waiting.resolve(answer)

    def answer_sync(self, answer: Answer) -> bool:
        """Whether it was waiting."""
        waiting, self.syncing = self.syncing, None
        if waiting is not None:
            waiting.resolve(answer)
        return waiting is not None
