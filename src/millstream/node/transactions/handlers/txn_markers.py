"""WriteTxnMarkers (27): a transaction coordinator, or whoever ends a hanging transaction, has markers written here."""

from collections.abc import Awaitable

from millstream.formats.model.errors import ErrorCode
from millstream.formats.model.identifiers import Marker, TopicName, TopicPartition
from millstream.formats.protocol.schema import Message
from millstream.node.coordination.known_epochs import KnownEpochs
from millstream.node.server.request import Context, Response
from millstream.node.transactions.marker_writer import MarkerWriter


class TxnMarkerHandlers:
    def __init__(self, writer: MarkerWriter, epochs: KnownEpochs) -> None:
        self._writer = writer
        self._epochs = epochs

    async def write_txn_markers(self, request: Message, context: Context) -> Response:
        """Answers for each producer; the first error of a partition stands, should there be several markers for it."""
        highest = self._epochs.highest_coordinator_epoch()
        appended = [(row, self._written(row, highest)) for row in request.markers]
        results: dict[int, dict[TopicPartition, ErrorCode]] = {}
        for row, outcome in appended:
            known = results.setdefault(row.producer_id, {})
            for at, error in (await outcome).items():
                known[at] = known.get(at) or error
        return {"markers": [_row(producer_id, outcomes) for producer_id, outcomes in results.items()]}

    def _written(self, row: Message, highest: int) -> Awaitable[dict[TopicPartition, ErrorCode]]:
        if row.coordinator_epoch > highest:
            return _refused(row)
        return self._writer.write(_marker(row), _partitions(row))


async def _refused(row: Message) -> dict[TopicPartition, ErrorCode]:
    """For a coordinator epoch that is not known here: coordinators, Kafka's too, send the marker again after this."""
    return dict.fromkeys(_partitions(row), ErrorCode.NOT_LEADER_OR_FOLLOWER)


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
