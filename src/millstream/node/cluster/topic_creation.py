"""Topics made on the way: what `auto.create.topics.enable` does when a client asks for topics that are not there."""

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.cluster.controller_link import ControllerLink
from millstream.node.metadata.topics import MAX_PARTITIONS_PER_REQUEST, NewTopic

_PATIENCE_S = 3.0
"""How long a client is kept waiting: what else it asked on the connection waits too, and it asks again anyway."""
_AT_ONCE = 50
"""Topics in one request to the controller."""


class TopicCreator:
    def __init__(self, link: ControllerLink) -> None:
        self._link = link

    async def create_with_defaults(self, names: list[str]) -> dict[str, KafkaError]:
        """Makes the topics with default settings; what went wrong, by name."""
        wanted = [NewTopic(name=name) for name in dict.fromkeys(names)]
        if len(wanted) > MAX_PARTITIONS_PER_REQUEST:
            message = f"{len(wanted)} topics to create on the way; the limit is {MAX_PARTITIONS_PER_REQUEST}"
            return dict.fromkeys(names, KafkaError(ErrorCode.POLICY_VIOLATION, message))
        failed: dict[str, KafkaError] = {}
        for begin in range(0, len(wanted), _AT_ONCE):
            failed |= await self._create(wanted[begin : begin + _AT_ONCE])
        return failed

    async def _create(self, wanted: list[NewTopic]) -> dict[str, KafkaError]:
        try:
            results = await self._link.create_topics(wanted, timeout_s=_PATIENCE_S)
        except KafkaError as error:
            return {topic.name: error for topic in wanted}
        return {
            result.name: KafkaError(result.error, result.message or "")
            for result in results
            # Someone else was faster: then it is there.
            if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        }
