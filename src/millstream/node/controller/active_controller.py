"""The active controller: decides on the newest image, puts it through the quorum, answers when it is in force.

Decisions are pure functions of `metadata/`. They are taken one after another without waiting for each other: each sees
the image that the ones before will make (`decided`), although their records may not be committed yet. What was decided
counts for nobody else until the quorum has committed it and this node's own image shows it; then it is answered, so
that a client finds here what it was told. When the quorum chooses another leader, `decided` is dropped. A decision that
waits is answered if the next leader keeps it; otherwise it fails with NOT_CONTROLLER, and may or may not come into
force, as with any database that dies between writing and answering.

How the records of a decision are cut into batches of the metadata log, each of which is in force as a whole.

A node's settings as they are now: those it was started with, under those that the metadata holds for brokers.

What controller and broker need of the quorum: a log to append decisions to, and the image of what is committed.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from millstream.config.broker_config import BrokerConfig
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.environment import Environment
from millstream.node.metadata.features import bootstrap_records
from millstream.node.metadata.image import MetadataDelta, MetadataImage, ResourceType, apply
from millstream.node.metadata.records import ConfigRecord, Decision, MetadataRecord, PartitionRecord, TopicRecord

MAX_BATCH_RECORDS = 10_000
MAX_BATCH_BYTES = 8 << 20
"""Kafka's bounds: followers fetch whole batches."""
_FIXED_BYTES = 128
_BYTES_PER_REPLICA = 32


def cut_into_batches(records: Sequence[MetadataRecord]) -> Iterator[Sequence[MetadataRecord]]:
    """A topic stays in one batch with its partitions and settings, whatever its size: half a topic must never be."""
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
    """About how many bytes they take."""
    total = 0
    for record in records:
        total += _FIXED_BYTES
        if isinstance(record, PartitionRecord):
            total += _BYTES_PER_REPLICA * len(record.replicas)
        elif isinstance(record, ConfigRecord):
            total += len(record.resource_name) + len(record.name) + 3 * len(record.value or "")
    return total


def dynamic_config(static: BrokerConfig, image: MetadataImage) -> BrokerConfig:
    own = image.broker_config(static.node_id)
    if not own and not image.default_broker_config:
        return static
    return static.with_dynamic(default=image.default_broker_config, own=own)


def changes_broker_settings(delta: MetadataDelta) -> bool:
    return any(resource.type == ResourceType.BROKER for resource in delta.configs)


class ImageSource(Protocol):
    """The node's copy of the committed metadata."""

    @property
    def image(self) -> MetadataImage: ...

    def subscribe(self, on_change: Callable[[MetadataDelta], None]) -> None:
        """Calls back, in the order of subscription, each time after `image` was replaced."""
        ...


class DecisionLog(Protocol):
    """The metadata log as its leader sees it."""

    @property
    def epoch(self) -> int: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def log_end_offset(self) -> int:
        """The offset that the next record will get."""
        ...

    def append(self, records: Sequence[MetadataRecord]) -> int:
        """Appends one batch in the leader's epoch; its last offset. NOT_CONTROLLER when this node does not lead."""
        ...


class Leadership(Protocol):
    """Who leads the quorum, as far as this node knows."""

    @property
    def leader_id(self) -> int | None: ...

    def leader_address(self) -> tuple[str, int] | None: ...


_PATIENCE_S = 2.0
"""How long a node that leads no more waits to see what became of its last decisions."""
R = TypeVar("R")
Decide = Callable[[MetadataImage, BrokerConfig, random.Random], Decision[R]]


class ActiveController:
    """On every node with the controller role; it is active on the one that leads the quorum."""

    def __init__(
        self,
        config: BrokerConfig,
        log: DecisionLog,
        source: ImageSource,
        environment: Environment,
        *,
        new_cluster_id: Callable[[], str],
    ) -> None:
        """`new_cluster_id` gives the id for a cluster that has none, should this node be the first to lead it."""
        self._static_config = config
        self.config = dynamic_config(config, source.image)
        self._log = log
        self._source = source
        self._environment = environment
        self._new_cluster_id = new_cluster_id
        self._decided: MetadataImage | None = None
        self.epoch = -1
        self._waiting: deque[_Undecided] = deque()
        self._patience: asyncio.TimerHandle | None = None
        self.on_leading: list[Callable[[], None]] = []
        self.on_resigned: list[Callable[[], None]] = []
        source.subscribe(self._follow)

    # Told by the quorum

    def leading(self, epoch: int) -> None:
        """This node leads, and everything of earlier epochs is committed and in the source's image."""
        self.no_longer_leading()
        self._give_up()
        if not self._log.is_leader or self._log.epoch != epoch:
            return  # that is over already
        self.epoch = epoch
        self._decided = self._source.image
        if not self._decided.cluster_id:
            self._write(Decision(bootstrap_records(self._new_cluster_id(), self.config), ()))
        for callback in self.on_leading:
            callback()

    def no_longer_leading(self) -> None:
        if self._decided is None:
            return
        self._decided = None
        for undecided in self._waiting:
            if not undecided.changes:
                undecided.fail(self._static_config.node_id)
        # What was appended may well come into force under the next leader. Whoever asked for it should not be told
        # otherwise, and find when asking again that it is there already.
        self._patience = self._environment.loop.call_later(_PATIENCE_S, self._give_up)
        for callback in self.on_resigned:
            callback()

    def close(self) -> None:
        self.no_longer_leading()
        self._give_up()

    def _give_up(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        waiting, self._waiting = self._waiting, deque()
        for undecided in waiting:
            undecided.fail(self._static_config.node_id)

    def committed(self, records: Sequence[MetadataRecord], *, offset: int, epoch: int) -> None:
        """The source follows what is committed."""

    def reset(self, image_records: Sequence[MetadataRecord], *, offset: int, epoch: int) -> None:
        """The source follows snapshots; a leader never gets one."""

    def leader_changed(self, leader_id: int | None, epoch: int) -> None:
        """Only the own lead matters here."""

    @property
    def is_active(self) -> bool:
        return self._decided is not None and self._log.is_leader and self._log.epoch == self.epoch

    @property
    def image(self) -> MetadataImage:
        """The newest image, as the last decision made it; NOT_CONTROLLER where nothing is decided here."""
        self._check_active()
        assert self._decided is not None
        return self._decided

    @property
    def known_image(self) -> MetadataImage:
        """What is committed as far as this node knows, whether it decides or not."""
        return self._source.image

    def _check_active(self) -> None:
        if not self.is_active:
            raise _not_controller(self._static_config.node_id)

    @property
    def next_offset(self) -> int:
        """The offset that the first record of the next decision gets."""
        return self._log.log_end_offset

    # Deciding

    async def decide(self, decide: "Decide[R]") -> tuple[R, ...]:
        """Takes a decision; its results, once what it rests on and what it changes is committed and followed here."""
        decision = decide(self.image, self.config, self._environment.randomness)
        offset = self._write(decision)
        if offset > self._source.image.offset:
            done: asyncio.Future[None] = self._environment.loop.create_future()
            self._waiting.append(_Undecided(offset, self.epoch, bool(decision.records), done))
            await done
        return decision.results

    async def read(self) -> MetadataImage:
        """The newest image, once it is committed."""
        image = self.image

        def nothing(image: MetadataImage, config: BrokerConfig, randomness: random.Random) -> Decision[None]:
            return Decision((), ())

        await self.decide(nothing)
        return image

    def _write(self, decision: Decision[R]) -> int:
        """Appends what was decided; the offset that has to be committed before the decision may be spoken of."""
        image = self.image
        for batch in cut_into_batches(decision.records) if decision.records else ():
            # No await since `image` was checked: all batches go into this node's own epoch, or none does.
            offset = self._log.append(batch)
            self._check_active()
            self._decided = image = apply(image, batch, offset=offset, epoch=self.epoch).image
        return image.offset

    def _follow(self, delta: MetadataDelta) -> None:
        image = self._source.image
        if changes_broker_settings(delta):
            self.config = dynamic_config(self._static_config, image)
        # Who waits runs after all subscribers were told: setting a result only schedules it.
        while self._waiting and self._waiting[0].offset <= image.offset:
            undecided = self._waiting.popleft()
            if undecided.epoch != image.epoch:
                undecided.fail(self._static_config.node_id)  # another leader wrote something else there
            elif not undecided.done.done():
                undecided.done.set_result(None)


@dataclass(slots=True)
class _Undecided:
    """A decision whose records are in the log, and not known to be committed."""

    offset: int
    epoch: int
    changes: bool
    done: "asyncio.Future[None]"

    def fail(self, node_id: int) -> None:
        if not self.done.done():
            self.done.set_exception(_not_controller(node_id))


def _not_controller(node_id: int) -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, f"Node {node_id} is not the active controller.")
