"""The active controller: decides on the newest image, appends to the quorum, and responds when it is applied.

Decisions are pure functions of `metadata/`. They do not wait for each other: each one sees the image that the previous
ones will produce (`_decided`), although their records may not be committed yet. A decision is visible to others, and
its response is sent, only when the quorum has committed it and this node's image contains it. When the quorum elects
another leader, `_decided` is dropped. A pending decision succeeds if the next leader keeps its records. Otherwise it
fails with NOT_CONTROLLER, and may or may not be applied later.

The records of a decision are split into batches of the metadata log. Each batch is applied as a whole.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from millstream.common.lazy_dataclass import dataclass
from millstream.config.broker_config import BrokerConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.environment import Environment
from millstream.node.metadata.features import first_records_of_leader
from millstream.node.metadata.image import MetadataDelta, MetadataImage, ResourceType, apply
from millstream.node.metadata.levels import METADATA, RECORDS
from millstream.node.metadata.records import (
    ClientQuotaRecord,
    ConfigRecord,
    Decision,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
    name_and_version,
)

MAX_BATCH_RECORDS = 10_000
MAX_BATCH_BYTES = 8 << 20
"""Kafka's limits: followers fetch whole batches."""
_FIXED_BYTES = 128
_BYTES_PER_REPLICA = 32


def cut_into_batches(records: Sequence[MetadataRecord]) -> Iterator[Sequence[MetadataRecord]]:
    """Splits the records of a decision into batches. A topic is always in one batch with its partitions and settings,
    so that no node sees a part of a topic."""
    if len(records) <= MAX_BATCH_RECORDS and _size(records) <= MAX_BATCH_BYTES:
        yield records
        return
    batch: list[MetadataRecord] = []
    size = 0
    for group in _groups(records):
        more = _size(group)
        if batch and (len(batch) + len(group) > MAX_BATCH_RECORDS or size + more > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch += group
        size += more
    if batch:
        yield batch


def _groups(records: Iterable[MetadataRecord]) -> Iterator[list[MetadataRecord]]:
    group: list[MetadataRecord] = []
    for record in records:
        belongs = group and isinstance(group[0], TopicRecord) and isinstance(record, PartitionRecord | ConfigRecord)
        if group and not belongs:
            yield group
            group = []
        group.append(record)
    if group:
        yield group


def _size(records: Iterable[MetadataRecord]) -> int:
    """The approximate size in bytes."""
    total = 0
    for record in records:
        total += _FIXED_BYTES
        if isinstance(record, PartitionRecord):
            total += _BYTES_PER_REPLICA * len(record.replicas)
        elif isinstance(record, ConfigRecord):
            total += len(record.resource_name) + len(record.name) + 3 * len(record.value or "")
        elif isinstance(record, ClientQuotaRecord):
            total += 3 * sum(len(part.entity_name or "") for part in record.entity)
    return total


def dynamic_config(static: BrokerConfig, image: MetadataImage) -> BrokerConfig:
    """The settings of the configuration file, with those that were set in the metadata."""
    own = image.broker_config(static.node_id)
    if not own and not image.default_broker_config:
        return static
    return static.with_dynamic(default=image.default_broker_config, own=own)


def changes_broker_settings(delta: MetadataDelta) -> bool:
    return any(resource.type == ResourceType.BROKER for resource in delta.configs)


class ImageSource(Protocol):
    """The committed metadata on this node."""

    @property
    def image(self) -> MetadataImage: ...

    def subscribe(self, on_change: Callable[[MetadataDelta], None]) -> None:
        """Calls back after each change of `image`, in the order of subscription."""
        ...


class DecisionLog(Protocol):
    """The metadata log, to which the leader of the quorum appends decisions."""

    @property
    def epoch(self) -> int: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        ...

    def append(self, records: Sequence[MetadataRecord]) -> int:
        """Appends one batch in the leader's epoch; returns its last offset. NOT_CONTROLLER if not the leader."""
        ...


class Leadership(Protocol):
    """The leader of the quorum, as far as this node knows."""

    @property
    def leader_id(self) -> int | None: ...

    def leader_address(self) -> tuple[str, int] | None: ...


_RESIGNED_TIMEOUT_SECONDS = 2.0
"""The time that a former leader waits to learn whether its last decisions were committed."""
R = TypeVar("R")
Decide = Callable[[MetadataImage, BrokerConfig, random.Random], Decision[R]]


class ActiveController:
    """The controller of a node. It is on every node with the controller role, and active on the leader of the
    quorum."""

    def __init__(
        self,
        config: BrokerConfig,
        log: DecisionLog,
        source: ImageSource,
        environment: Environment,
        *,
        new_cluster_id: Callable[[], str],
        first_records: Sequence[MetadataRecord] = (),
    ) -> None:
        """`new_cluster_id` returns the id of a new cluster, if this node is its first leader. `first_records` are
        written with it: users that must exist from the beginning."""
        self._first_records = tuple(first_records)
        self._static_config = config
        self.config = dynamic_config(config, source.image)
        self._log = log
        self._source = source
        self._environment = environment
        self._new_cluster_id = new_cluster_id
        self._decided: MetadataImage | None = None
        self.epoch = -1
        self._waiting: deque[_PendingDecision] = deque()
        self._resigned_timer: asyncio.TimerHandle | None = None
        self.on_leading: list[Callable[[], None]] = []
        self.on_resigned: list[Callable[[], None]] = []
        source.subscribe(self._follow)

    # Callbacks of the quorum

    def leading(self, epoch: int) -> None:
        """This node leads the quorum. All records of earlier epochs are committed and in the image."""
        self.no_longer_leading()
        self._give_up()
        if not self._log.is_leader or self._log.epoch != epoch:
            return  # the leader has changed again
        self.epoch = epoch
        self._decided = self._source.image
        first = first_records_of_leader(self._decided, self._new_cluster_id, self.config, self._first_records)
        if first:
            self._write(Decision(first, ()))
        for callback in self.on_leading:
            callback()

    def no_longer_leading(self) -> None:
        if self._decided is None:
            return
        self._decided = None
        for pending in self._waiting:
            if not pending.has_records:
                pending.fail(self._static_config.node_id)
        # The next leader may commit records that were appended here. An error now would make the client retry a change
        # that is applied already.
        self._resigned_timer = self._environment.loop.call_later(_RESIGNED_TIMEOUT_SECONDS, self._give_up)
        for callback in self.on_resigned:
            callback()

    def close(self) -> None:
        self.no_longer_leading()
        self._give_up()

    def _give_up(self) -> None:
        if self._resigned_timer is not None:
            self._resigned_timer.cancel()
            self._resigned_timer = None
        waiting, self._waiting = self._waiting, deque()
        for pending in waiting:
            pending.fail(self._static_config.node_id)

    def committed(self, records: Sequence[MetadataRecord], *, offset: int, epoch: int) -> None:
        """Not used: the image source applies committed records."""

    def reset(self, image_records: Sequence[MetadataRecord], *, offset: int, epoch: int) -> None:
        """Not used: the image source applies snapshots, and a leader never gets one."""

    def leader_changed(self, leader_id: int | None, epoch: int) -> None:
        """Not used: only this node's own leadership matters here."""

    @property
    def is_active(self) -> bool:
        return self._decided is not None and self._log.is_leader and self._log.epoch == self.epoch

    @property
    def image(self) -> MetadataImage:
        """The image after the last decision, which may not be committed yet. NOT_CONTROLLER if not active."""
        self._check_active()
        assert self._decided is not None
        return self._decided

    @property
    def known_image(self) -> MetadataImage:
        """The committed image on this node, whether it is the active controller or not."""
        return self._source.image

    def _check_active(self) -> None:
        if not self.is_active:
            raise _not_controller(self._static_config.node_id)

    @property
    def next_offset(self) -> int:
        """The offset of the first record of the next decision."""
        return self._log.log_end_offset

    # Deciding

    async def decide(self, decide: "Decide[R]") -> tuple[R, ...]:
        """Decides; returns the results when the records of this decision and of all earlier ones are committed and
        applied."""
        decision = decide(self.image, self.config, self._environment.randomness)
        offset = self._write(decision)
        if offset > self._source.image.offset:
            done: asyncio.Future[None] = self._environment.loop.create_future()
            self._waiting.append(_PendingDecision(offset, self.epoch, bool(decision.records), done))
            await done
        return decision.results

    async def read(self) -> MetadataImage:
        """The newest image, after it is committed."""
        image = self.image

        def nothing(image: MetadataImage, config: BrokerConfig, randomness: random.Random) -> Decision[None]:
            return Decision((), ())

        await self.decide(nothing)
        return image

    def _write(self, decision: Decision[R]) -> int:
        """Appends the records of a decision; returns the offset that must be committed before the response."""
        image = self.image
        check_levels(decision.records, image.features)
        for batch in cut_into_batches(decision.records) if decision.records else ():
            # No await after the check in `image`: all batches are appended in this node's epoch, or none.
            offset = self._log.append(batch)
            self._check_active()
            self._decided = image = apply(image, batch, offset=offset, epoch=self.epoch).image
        return image.offset

    def _follow(self, delta: MetadataDelta) -> None:
        image = self._source.image
        if changes_broker_settings(delta):
            self.config = dynamic_config(self._static_config, image)
        # Setting a result only schedules the waiting task, so it runs after all subscribers were called.
        while self._waiting and self._waiting[0].offset <= image.offset:
            pending = self._waiting.popleft()
            if pending.epoch != image.epoch:
                pending.fail(self._static_config.node_id)  # another leader wrote other records at this offset
            elif not pending.done.done():
                pending.done.set_result(None)


@dataclass(slots=True)
class _PendingDecision:
    """A decision whose records are in the log and not committed yet."""

    offset: int
    epoch: int
    has_records: bool
    done: "asyncio.Future[None]"

    def fail(self, node_id: int) -> None:
        if not self.done.done():
            self.done.set_exception(_not_controller(node_id))


def _not_controller(node_id: int) -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, f"Node {node_id} is not the active controller.")


def check_levels(records: Iterable[MetadataRecord], features: Mapping[str, int]) -> None:
    """UNSUPPORTED_VERSION if a record needs a higher `metadata.version` than the cluster has: a node of the previous
    version could not read its log any more."""
    level = features.get(METADATA, 0)
    for record in records:
        if isinstance(record, FeatureLevelRecord):
            if record.name == METADATA:
                level = record.feature_level
            continue
        name, version = name_and_version(record)
        needed = RECORDS[name][version]
        if needed > level:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"The change needs {METADATA} {needed}, and the cluster has {level}: run millstream cluster upgrade.",
            )
