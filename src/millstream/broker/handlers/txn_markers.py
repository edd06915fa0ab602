"""WriteTxnMarkers (27): a transaction coordinator, or whoever ends a hanging transaction, has markers written here."""

from millstream.api.request import Context, Response
from millstream.broker.marker_writer import MarkerWriter
from millstream.model.errors import ErrorCode
from millstream.model.identifiers import TopicName, TopicPartition
from millstream.model.transactions import Marker
from millstream.protocol.schema import Message


class TxnMarkerHandlers:
    def __init__(self, writer: MarkerWriter) -> None:
        self._writer = writer

    async def write_txn_markers(self, request: Message, context: Context) -> Response:
        """Answers for each producer; the first error of a partition stands, should there be several markers for it."""
        appended = [(row, self._writer.write(_marker(row), _partitions(row))) for row in request.markers]
        results: dict[int, dict[TopicPartition, ErrorCode]] = {}
        for row, outcome in appended:
            known = results.setdefault(row.producer_id, {})
            for at, error in (await outcome).items():
                known[at] = known.get(at) or error
        return {"markers": [_row(producer_id, outcomes) for producer_id, outcomes in results.items()]}


def _marker(row: Message) -> Marker:
    return Marker(
        row.producer_id, row.producer_epoch, row.coordinator_epoch, row.transaction_result, row.transaction_version
    )


def _partitions(row: Message) -> list[TopicPartition]:
    return [TopicPartition(TopicName(topic.name), index) for topic in row.topics for index in topic.partition_indexes]


def _row(producer_id: int, outcomes: dict[TopicPartition, ErrorCode]) -> dict[str, object]:
    topics: dict[str, list[dict[str, int]]] = {}
    for at, error in outcomes.items():
        topics.setdefault(at.topic, []).append({"partition_index": at.partition, "error_code": error})
    return {
        "producer_id": producer_id,
        "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
    }
