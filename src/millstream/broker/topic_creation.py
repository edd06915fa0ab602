"""Topics made on the way: what `auto.create.topics.enable` does when a client asks for topics that are not there."""

from millstream.broker.controller_link import ControllerLink
from millstream.metadata.topics import NewTopic
from millstream.model.errors import ErrorCode, KafkaError

_PATIENCE_S = 3.0
"""How long a client is kept waiting: what else it asked on the connection waits too, and it asks again anyway."""


class TopicCreator:
    def __init__(self, link: ControllerLink) -> None:
        self._link = link

    async def create_with_defaults(self, names: list[str]) -> dict[str, KafkaError]:
        """Makes the topics with default settings; what went wrong, by name."""
        wanted = [NewTopic(name=name) for name in dict.fromkeys(names)]
        if not wanted:
            return {}
        try:
            results = await self._link.create_topics(wanted, timeout_s=_PATIENCE_S)
        except KafkaError as error:
            return dict.fromkeys(names, error)
        return {
            result.name: KafkaError(result.error, result.message or "")
            for result in results
            # Someone else was faster: then it is there.
            if result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
        }
