"""The caller of a request, and its connection to the cluster.

`current_caller()` is the caller of the running request: it is set by the access check, and threads and tasks of the
request inherit it. Handlers take the cluster from it (`caller_cluster()`) and never keep it beyond the request; what
lives longer (a consumer, a stream, a page of the console) holds the connection with `hold`.
"""

import threading
from collections.abc import Callable, Hashable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from millstream.access.masking import ALL_HIDDEN, Mask, Masking
from millstream.access.roles import Role
from millstream.access.subjects import ALL_SUBJECTS, SubjectOperation, SubjectPermissions
from millstream.raw_client import Cluster

T = TypeVar("T")
CALLER = "millstream.caller"
"""In the scope of a request: the Caller."""


class Connection:
    """The clients of one caller to the cluster: the raw client, and parts made on first use (a producer, caches).

    In the modes without pass-through all callers share the gateway's own.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.holders = 0
        """Requests, consumers, streams and pages that use it now. Used in the event loop only."""
        self.is_closed = False
        self._parts: dict[Hashable, Any] = {}
        self._closers: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def part(self, key: Hashable, make: Callable[[], T], close: Callable[[T], None] | None = None) -> T:
        """The part with this key, made on first use. `close` is called when the connection is closed."""
        with self._lock:
            if key not in self._parts:
                made = self._parts[key] = make()
                if close is not None:
                    closer = close
                    self._closers.append(lambda: closer(made))
            return cast(T, self._parts[key])

    def hold(self) -> None:
        self.holders += 1

    def release(self) -> None:
        self.holders -= 1

    def close(self) -> None:
        """May block for some seconds: a producer sends what it has."""
        self.is_closed = True
        with self._lock:
            closers, self._closers = self._closers[::-1], []
        for close in closers:
            close()
        self.cluster.close()


@dataclass(frozen=True, slots=True)
class Caller:
    name: str
    """Empty: anonymous."""
    connection: Connection
    groups: frozenset[str] = frozenset()
    role: Role = Role.ADMIN
    subjects: SubjectPermissions = ALL_SUBJECTS
    masking: Masking = field(default_factory=Masking)
    acts_as_itself: bool = False
    """Its connection to the cluster has its own credentials."""
    schemas_topic: str = ""
    """The topic of the registry. The permissions on subjects count, also for who reads or writes the topic itself."""
    note_masked: Callable[[str], None] = lambda topic: None
    """Called with a topic of which the caller does not see everything."""

    @property
    def identity(self) -> str:
        """Whose consumers and streams these are. Anonymous callers share theirs."""
        return self.name

    def may_write(self, topic: str) -> bool:
        """Schemas are changed through the registry, which checks them and the permissions on subjects."""
        return topic != self.schemas_topic or (self.role >= Role.ADMIN and self.subjects.is_unlimited)

    def mask_of(self, topic: str) -> Mask | None:
        mask = self.masking.mask_of(topic, self.role, self.name) if self.masking else None
        if topic == self.schemas_topic and not self.subjects.allows(SubjectOperation.READ, None):
            mask = ALL_HIDDEN
        if mask is not None:
            self.note_masked(topic)
        return mask


_current: ContextVar[Caller] = ContextVar("millstream_caller")


def set_caller(caller: Caller) -> None:
    """For the rest of this request and its threads and tasks."""
    _current.set(caller)


def current_caller() -> Caller:
    """LookupError outside of a request: nothing may fall back to the gateway's own rights."""
    return _current.get()


def caller_cluster() -> Cluster:
    return _current.get().connection.cluster
