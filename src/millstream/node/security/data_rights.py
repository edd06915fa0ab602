"""Permissions of Produce, Fetch and ShareFetch: decided once for each topic and client, then one look-up for a topic.

Requests name topics by the bytes of their name or of their id. `Refusals` maps these bytes to an error code, 0 if the
client may go on. A client keeps its tables until the ACLs change. A topic id that does not exist is no matter of
permission: the handler responds that it is unknown. Fetch sessions last longer than a request, so every fetch is
checked for all partitions of its session.
"""

from collections.abc import Callable
from typing import NamedTuple
from uuid import UUID

from millstream.formats.model.access_control import CLUSTER_NAME, AclOperation, AclResourceType
from millstream.formats.model.errors import ErrorCode
from millstream.formats.model.identifiers import TopicId
from millstream.formats.protocol import fetch as fetch_codec
from millstream.formats.protocol import produce as produce_codec
from millstream.node.metadata.image import MetadataImage
from millstream.node.security.authorizer import StandardAuthorizer
from millstream.node.security.core.acls import Access
from millstream.node.server.request import ProduceResults, Refusals
from millstream.node.server.service import Peer

_REFUSED = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_MOST_KEPT = 10_000
_READ, _WRITE = "READ", "WRITE"
"""Names, because an enum as key of a dictionary is slow."""


class _Codes(dict[bytes, int]):
    """Error codes of topics, decided when they are first needed."""

    __slots__ = ("_decide",)

    def __init__(self, decide: Callable[[bytes], int | None]) -> None:
        super().__init__()
        self._decide = decide

    def __missing__(self, topic: bytes) -> int:
        code = self._decide(topic)
        if code is None:
            return 0
        if len(self) >= _MOST_KEPT:
            self.clear()
        self[topic] = code
        return code


class AllRefused(dict[bytes, int]):
    """Refuses every topic: for a fetch as a follower by a client that is none."""

    def __missing__(self, topic: bytes) -> int:
        return _REFUSED


ALL_REFUSED: Refusals = AllRefused()


class _Topics(NamedTuple):
    """The tables of one client for one operation."""

    by_name: _Codes
    by_id: _Codes


class DataRights:
    def __init__(self, authorizer: StandardAuthorizer, image: Callable[[], MetadataImage]) -> None:
        self._authorizer = authorizer
        self._image = image

    def produce(
        self, request: produce_codec.ProduceRequest, version: int, peer: Peer
    ) -> tuple[produce_codec.ProduceRequest, ProduceResults]:
        """The request without the topics that the client may not write to, and the results of those."""
        if request.transactional_id is not None and not self._authorizer.allows(
            peer,
            AclOperation.WRITE,
            AclResourceType.TRANSACTIONAL_ID,
            request.transactional_id.decode(errors="replace"),
        ):
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return request.with_topics([]), [(topic, _failed(rows, code)) for topic, rows in request.topics]
        tables = self._topics(peer, _WRITE)
        codes = tables.by_id if version >= produce_codec.FIRST_WITH_TOPIC_ID else tables.by_name
        for topic, _ in request.topics:
            if codes[topic]:
                return self._refused(request, codes, peer)
        return request, []

    def _refused(
        self, request: produce_codec.ProduceRequest, codes: _Codes, peer: Peer
    ) -> tuple[produce_codec.ProduceRequest, ProduceResults]:
        allowed = [(topic, rows) for topic, rows in request.topics if not codes[topic]]
        refused = [(topic, rows) for topic, rows in request.topics if codes[topic]]
        return request.with_topics(allowed), [(topic, _failed(rows, _REFUSED)) for topic, rows in refused]

    def fetch(self, request: fetch_codec.FetchRequest, version: int, peer: Peer) -> Refusals | None:
        """The error codes of topics for this fetch; None if it may read everything."""
        if peer.is_node:
            return None
        if request.replica_id >= 0:
            return None if self.is_broker(peer) else ALL_REFUSED
        tables = self._topics(peer, _READ)
        return tables.by_id if version >= fetch_codec.FIRST_WITH_TOPIC_ID else tables.by_name

    def is_broker(self, peer: Peer) -> bool:
        return self._authorizer.allows(peer, AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME)

    def may_read(self, peer: Peer, topic_id: UUID) -> bool:
        """For share groups, which name topics by id."""
        return peer.is_node or not self._topics(peer, _READ).by_id[topic_id.bytes]

    def _topics(self, peer: Peer, operation: str) -> _Topics:
        access = self._authorizer.access(peer)
        tables = access.scratch.get(operation)
        if tables is None:
            tables = access.scratch[operation] = self._tables(access, AclOperation[operation], peer)
        return tables  # type: ignore[return-value] # only this class puts something there

    def _tables(self, access: Access, operation: AclOperation, peer: Peer) -> _Topics:
        """`peer` is the first of the clients that share the access: same principal, same address."""
        auditor = self._authorizer.auditor

        def by_name(name: str) -> int:
            if not access.allows(operation, AclResourceType.TOPIC, name):
                self._authorizer.on_denied(peer, operation, AclResourceType.TOPIC, name)
                return _REFUSED
            # Once for each topic and client, not for each request.
            if auditor.samples_data:
                auditor.data_access(peer, operation, AclResourceType.TOPIC, name)
            return 0

        def by_id(topic_id: bytes) -> int | None:
            topic = self._image().topics_by_id.get(TopicId(UUID(bytes=topic_id)))
            return None if topic is None else by_name(topic.name)

        return _Topics(_Codes(lambda name: by_name(name.decode(errors="replace"))), _Codes(by_id))


def _failed(rows: list[produce_codec.PartitionData], code: int) -> list[produce_codec.PartitionResult]:
    message = "Topic authorization failed." if code == _REFUSED else "Transactional Id authorization failed."
    return [produce_codec.PartitionResult(row.partition, code, message=message) for row in rows]
