"""The active controller of a quorum of one: decides on the newest image, writes the decision down, then lives by it.

Decisions are pure functions of `metadata/`; here they are taken one after another, and none counts before its records
are on disk. A crash between writing and answering leaves a decision that is in force but was not answered, as with any
database.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from millstream.broker.metadata_log import MetadataLog
from millstream.config.broker_config import BrokerConfig
from millstream.environment import Environment
from millstream.metadata.application import apply
from millstream.metadata.decision import Decision, Outcome
from millstream.metadata.image import MetadataDelta, MetadataImage, ResourceType
from millstream.model.errors import KafkaError

R = TypeVar("R")
Decide = Callable[[MetadataImage, BrokerConfig, random.Random], Decision[R]]


class Controller:
    def __init__(
        self,
        config: BrokerConfig,
        image: MetadataImage,
        log: MetadataLog,
        environment: Environment,
    ) -> None:
        self._static_config = config
        self.image = image
        self.config = self._dynamic_config()
        self._log = log
        self._environment = environment
        self._one_at_a_time = asyncio.Lock()
        self.on_change: Callable[[MetadataDelta], None] = lambda delta: None

    async def decide(self, decide: "Decide[R]") -> tuple[R, ...]:
        """Takes a decision, makes it durable, applies it, and returns the answers."""
        async with self._one_at_a_time:
            decision = decide(self.image, self.config, self._environment.randomness)
            if decision.records:
                try:
                    offset = await self._log.append(decision.records, self._environment)
                except KafkaError as error:
                    return tuple(_undecided(result, error) for result in decision.results)
                image, delta = apply(self.image, decision.records, offset=offset, epoch=self._log.epoch)
                self.image = image
                if any(resource.type == ResourceType.BROKER for resource in delta.configs):
                    self.config = self._dynamic_config()
                self.on_change(delta)
            return decision.results

    def _dynamic_config(self) -> BrokerConfig:
        image = self.image
        own = image.broker_config(self._static_config.node_id)
        if not own and not image.default_broker_config:
            return self._static_config
        return self._static_config.with_dynamic(default=image.default_broker_config, own=own)


def _undecided(result: R, error: KafkaError) -> R:
    """What the asker hears of a decision that could not be written down, which therefore is none."""
    if not isinstance(result, Outcome):
        raise error
    return result if result.error else replace(result, error=error.code, message=error.message)
