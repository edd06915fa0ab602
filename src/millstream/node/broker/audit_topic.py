"""The topic `__millstream_audit`: created when the first event is written; one record per event.

ReportAuditEvents (10000) is an API of Millstream. A gateway reports with it what it has decided itself. Only the
principals of `millstream.audit.gateways` may use it, with or without an authorizer. A request takes at most
`MOST_REPORTED` events. The response has the number of events that the queue of this broker took; the gateway repeats
the others.
"""

from millstream.config.table.protection import MILLSTREAM_AUDIT_GATEWAYS, principals_of
from millstream.formats.model.access_control import CLUSTER_NAME, AclOperation, AclResourceType
from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.wire_types import ReportAuditEventsRequest, ReportAuditEventsResponse
from millstream.formats.records.record import Record, build_batch
from millstream.node.cluster.cluster_view import ClusterView
from millstream.node.cluster.topic_creation import InternalTopics
from millstream.node.data.internal_client import InternalProducer
from millstream.node.environment import Environment
from millstream.node.metadata.topic_names import AUDIT_TOPIC
from millstream.node.security.core.audit_events import InvalidEventError, reported_event
from millstream.node.server.request import Context

_REPLICAS = 3
_SETTINGS = {"cleanup.policy": "delete", "retention.ms": str(30 * 24 * 3600 * 1000), "compression.type": "producer"}
MOST_REPORTED = 100


class AuditTopic:
    def __init__(
        self, view: ClusterView, topics: InternalTopics, producer: InternalProducer, environment: Environment
    ) -> None:
        self._view = view
        self._topics = topics
        self._producer = producer
        self._environment = environment

    async def write(self, events: list[bytes]) -> None:
        """Appends the events; raises KafkaError if the topic cannot be created or written now."""
        await self._topics.ensure(AUDIT_TOPIC, 1, _REPLICAS, _SETTINGS)
        now_ms = self._environment.clock.now_ms()
        records = [Record(None, value, timestamp=now_ms) for value in events]
        await self._producer.append(AUDIT_TOPIC, 0, build_batch(records))

    def report_audit_events(self, request: ReportAuditEventsRequest, context: Context) -> ReportAuditEventsResponse:
        peer = context.peer
        principal = str(peer.principal)
        if principal not in principals_of(self._view.config[MILLSTREAM_AUDIT_GATEWAYS]):
            self._environment.auditor.denied(
                peer, AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME, "ReportAuditEvents"
            )
            return {
                "error_code": ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                "error_message": f"{principal} is not in {MILLSTREAM_AUDIT_GATEWAYS.name}: add it to this setting of"
                " the brokers, then its events are recorded",
                "accepted": 0,
            }
        if len(request.events) > MOST_REPORTED:
            return _invalid(f"{len(request.events)} events in a request; the limit is {MOST_REPORTED}")
        try:
            documents = [reported_event(text) for text in request.events]
        except InvalidEventError as error:
            return _invalid(str(error))
        return {"accepted": self._environment.auditor.report(peer, documents)}


def _invalid(reason: str) -> ReportAuditEventsResponse:
    return {"error_code": ErrorCode.INVALID_REQUEST, "error_message": reason, "accepted": 0}
