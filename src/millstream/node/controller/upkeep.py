"""Periodic work of the active controller: leaders for partitions without one, preferred leaders, internal topics."""

import asyncio
import logging
from typing import Any

from millstream.config.broker_config import BrokerConfig
from millstream.config.table import cluster
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.controller.active_controller import ActiveController, Decide, ImageSource
from millstream.node.environment import Environment
from millstream.node.metadata.elections import MAX_ELECTIONS_AT_ONCE, ElectionResult, balance_leaders, elect_leaderless
from millstream.node.metadata.features import missing_features
from millstream.node.metadata.image import MetadataDelta, MetadataImage
from millstream.node.metadata.reassignment import ReassignmentResult, grow_internal_topics
from millstream.node.metadata.records import Decision

_LEADERLESS_CHECK_SECONDS = 10.0
_log = logging.getLogger("millstream.controller")


class Upkeep:
    def __init__(self, controller: ActiveController, source: ImageSource, environment: Environment) -> None:
        self._controller = controller
        self._environment = environment
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        controller.on_leading.append(self._begin)
        controller.on_resigned.append(self.close)
        source.subscribe(self._follow)

    def _begin(self) -> None:
        self.close()
        self._wanted.set()
        self._task = self._environment.loop.create_task(self._run(self._controller.epoch))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _follow(self, delta: MetadataDelta) -> None:
        if (
            delta.configs or delta.brokers
        ):  # unclean elections may be allowed now, internal topics may get more replicas
            self._wanted.set()

    async def _run(self, epoch: int) -> None:
        loop = self._environment.loop
        balance_due_s = loop.time() + self._balance_interval_s
        while self._controller.is_active and self._controller.epoch == epoch:
            try:
                if self._wanted.is_set():
                    self._wanted.clear()
                    await self._controller.decide(_add_missing_features)
                    await self._repeat(_elect_leaderless)
                    await self._controller.decide(_grow_internal_topics)
                if loop.time() >= balance_due_s:
                    balance_due_s = loop.time() + self._balance_interval_s
                    if self._controller.config[cluster.AUTO_LEADER_REBALANCE_ENABLE]:
                        await self._repeat(_balance_leaders)
            except KafkaError as error:
                if error.code == ErrorCode.NOT_CONTROLLER:
                    return
                _log.warning("upkeep_failed error=%s", error)
            except Exception:
                _log.exception("upkeep_failed")
            try:
                async with asyncio.timeout(min(_LEADERLESS_CHECK_SECONDS, max(0.0, balance_due_s - loop.time()))):
                    await self._wanted.wait()
            except TimeoutError:
                self._wanted.set()

    @property
    def _balance_interval_s(self) -> float:
        return float(self._controller.config[cluster.LEADER_IMBALANCE_CHECK_INTERVAL_SECONDS])

    async def _repeat(self, decide: "Decide[ElectionResult]") -> None:
        """Repeats a decision until nothing is left. Decisions are small, so that other requests are not delayed."""
        while len(await self._controller.decide(decide)) >= MAX_ELECTIONS_AT_ONCE:
            pass


def _add_missing_features(image: MetadataImage, config: BrokerConfig, _: Any) -> Decision[None]:
    """Adds levels for features that the log does not have, when all brokers support them."""
    known_to_all = [
        record
        for record in missing_features(image)
        if all(
            any(
                each.name == record.name
                and each.min_supported_version <= record.feature_level <= each.max_supported_version
                for each in broker.features
            )
            for broker in image.brokers.values()
        )
    ]
    return Decision(tuple(known_to_all), ())


def _grow_internal_topics(image: MetadataImage, config: BrokerConfig, _: Any) -> Decision[ReassignmentResult]:
    return grow_internal_topics(image, config)


def _elect_leaderless(image: MetadataImage, config: BrokerConfig, _: Any) -> Decision[ElectionResult]:
    return elect_leaderless(image, config)


def _balance_leaders(image: MetadataImage, config: BrokerConfig, _: Any) -> Decision[ElectionResult]:
    return balance_leaders(image, config)
