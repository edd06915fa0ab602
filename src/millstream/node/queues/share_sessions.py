"""Share sessions (KIP-932): what each member of a share group follows on this broker, and the epoch that orders its
requests. A session ends with its connection, and what its member holds is then free again.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from uuid import UUID

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.server.service import Peer

FIRST_EPOCH = 0
FINAL_EPOCH = -1
_LARGEST_EPOCH = (1 << 31) - 1
_PARTITIONS_PER_SESSION = 20_000
_PARTITIONS_IN_ALL = 250_000

PartitionId = tuple[UUID, int]


class ShareSession:
    __slots__ = ("closed", "epoch", "group_id", "member_id", "on_lost", "partitions", "peer", "touched")

    def __init__(self, group_id: str, member_id: str, peer: Peer) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.peer = peer
        self.closed = False
        self.epoch = 1
        """What the next request must carry."""
        self.partitions: OrderedDict[PartitionId, None] = OrderedDict()
        """Those that are followed, in the order in which they are served."""
        self.touched: set[PartitionId] = set()
        """Those of which the member may hold records, followed or not."""
        self.on_lost: Callable[[], None] = lambda: None

    def served(self, partitions: Iterable[PartitionId]) -> None:
        """Who got something goes behind those who did not."""
        for each in partitions:
            if each in self.partitions:
                self.partitions.move_to_end(each)


class ShareSessions:
    def __init__(self, slots: int, on_lost: Callable[[ShareSession], None]) -> None:
        """`on_lost` is told of sessions whose connection ended."""
        self._slots = slots
        self._on_lost = on_lost
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._followed = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, group_id: str, member_id: str, peer: Peer) -> ShareSession:
        """A new session, in place of one the member may have had: it still holds what it holds."""
        earlier = self._sessions.get((group_id, member_id))
        if earlier is None and len(self._sessions) >= self._slots:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED, f"this broker has {self._slots} share sessions")
        session = ShareSession(group_id, member_id, peer)
        if earlier is not None:
            self._remove(earlier)
            session.touched = earlier.touched
        session.on_lost = lambda: self._lost(session)
        peer.on_close.add(session.on_lost)
        self._sessions[group_id, member_id] = session
        return session

    def resume(self, group_id: str, member_id: str, epoch: int, peer: Peer) -> ShareSession:
        """The session that a request goes on with."""
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND, f"member {member_id} has no share session here")
        if epoch != session.epoch:
            raise KafkaError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH, f"share session epoch {epoch}, expected {session.epoch}"
            )
        session.epoch = 1 if epoch == _LARGEST_EPOCH else epoch + 1
        if session.peer is not peer:
            session.peer.on_close.discard(session.on_lost)
            session.peer = peer
            peer.on_close.add(session.on_lost)
        return session

    def follow(
        self, session: ShareSession, partitions: Iterable[PartitionId], forgotten: Iterable[PartitionId]
    ) -> None:
        """Changes what a session follows; SHARE_SESSION_LIMIT_REACHED if that would be too much."""
        before = len(session.partitions)
        for each in forgotten:
            session.partitions.pop(each, None)
        for each in partitions:
            session.partitions.setdefault(each)
        count = len(session.partitions)
        self._followed += count - before
        if count > _PARTITIONS_PER_SESSION or (count > before and self._followed > _PARTITIONS_IN_ALL):
            self._followed -= count
            session.partitions.clear()  # the member is told, and begins a new session
            raise KafkaError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED, f"{count} partitions are more than a share session can have now"
            )

    def close(self, group_id: str, member_id: str) -> ShareSession:
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND, f"member {member_id} has no share session here")
        self._remove(session)
        return session

    def _remove(self, session: ShareSession) -> None:
        session.peer.on_close.discard(session.on_lost)
        self._end(session)

    def _lost(self, session: ShareSession) -> None:
        if self._sessions.get((session.group_id, session.member_id)) is session:
            self._end(session)
            self._on_lost(session)

    def _end(self, session: ShareSession) -> None:
        session.closed = True
        self._followed -= len(session.partitions)
        del self._sessions[session.group_id, session.member_id]
