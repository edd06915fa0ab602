"""All that the controller role answers, by API."""

from millstream.api.request import Handler
from millstream.controller.active_controller import ActiveController
from millstream.controller.handlers.configs import ConfigHandlers
from millstream.controller.handlers.producer_ids import ProducerIdHandlers
from millstream.controller.handlers.topics import TopicHandlers


def controller_handlers(controller: ActiveController) -> dict[str, Handler]:
    topics = TopicHandlers(controller)
    configs = ConfigHandlers(controller)
    producer_ids = ProducerIdHandlers(controller)
    return {
        "create_topics": topics.create_topics,
        "delete_topics": topics.delete_topics,
        "create_partitions": topics.create_partitions,
        "alter_configs": configs.alter_configs,
        "incremental_alter_configs": configs.incremental_alter_configs,
        "allocate_producer_ids": producer_ids.allocate_producer_ids,
    }
