"""The shards of a coordinator: one for each partition of its topic that this broker leads.

They are loaded in the background when the broker begins to lead, so that what is due happens whether a client asks or
not (sessions end, decided transactions are carried out), and given up when it leads no longer.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.model.identifiers import TopicName
from millstream.node.coordination.coordinator_shell import CoordinatorShell
from millstream.node.environment import Environment
from millstream.node.metadata.image import MetadataDelta
from millstream.node.replicas.partition import Partition
from millstream.node.replicas.partition_table import PartitionTable

_LOAD_PATIENCE_SECONDS = 5.0
"""How long a request waits for its shard to load before the client is told to come again."""
_LOADS_AT_ONCE = 4
_AGAIN_S = 2.0


class CoordinatorShards:
    def __init__(
        self,
        topic: TopicName,
        partitions: PartitionTable,
        environment: Environment,
        new_shell: Callable[[Partition], CoordinatorShell],
        log: logging.Logger,
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._environment = environment
        self._new_shell = new_shell
        self._log = log
        self.shells: dict[int, CoordinatorShell] = {}
        """By partition: those that were not given up, loaded or not."""
        self.on_given_up: Callable[[CoordinatorShell], None] = lambda shell: None
        self._background: set[asyncio.Future[None]] = set()
        self._loads = asyncio.Semaphore(_LOADS_AT_ONCE)
        self._is_closed = False

    def led(self) -> list[int]:
        """The partitions of the topic that this broker leads."""
        partitions = self._partitions.by_name.get(self._topic.encode(), {})
        return [index for index, partition in partitions.items() if partition.is_leader]

    def all_loaded(self) -> list[CoordinatorShell]:
        """Those that are loaded and ours."""
        return [shell for shell in self.shells.values() if shell.is_loaded and shell.is_current]

    async def loaded(self, index: int) -> CoordinatorShell:
        """The shard of a partition, ready; KafkaError if it is not, or is somebody else's."""
        shell = self._shell(index)
        if shell.is_loaded:
            return shell
        try:
            async with asyncio.timeout(_LOAD_PATIENCE_SECONDS):
                await shell.load()
        except TimeoutError:
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, f"{self._topic}-{index} is loading") from None
        except Exception as error:
            self._give_up(index, shell)  # the next request begins anew
            if isinstance(error, KafkaError) and error.code == ErrorCode.NOT_COORDINATOR:
                raise
            self._log.error("shard_not_loaded partition=%s-%d error=%r", self._topic, index, error)
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self._topic}-{index}: {error}") from None
        return shell

    def _shell(self, index: int) -> CoordinatorShell:
        shell = self.shells.get(index)
        if shell is not None and shell.is_current:
            return shell
        if shell is not None:
            self._give_up(index, shell)
        partition = self._partitions.by_name.get(self._topic.encode(), {}).get(index)
        if partition is None or not partition.is_leader:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"another broker leads {self._topic}-{index}")
        fresh = self.shells[index] = self._new_shell(partition)
        fresh.on_lost = lambda: self._lost(index, fresh)
        return fresh

    def _give_up(self, index: int, shell: CoordinatorShell) -> None:
        if self.shells.get(index) is shell:
            del self.shells[index]
        shell.close()
        self.on_given_up(shell)

    def _lost(self, index: int, shell: CoordinatorShell) -> None:
        self._give_up(index, shell)
        self.in_background(self._load(index))

    # Life

    def start(self) -> None:
        """Takes over what this broker leads: each shard is loaded in the background."""
        for index, shell in tuple(self.shells.items()):
            if not shell.is_current:
                self._give_up(index, shell)
        for index in self.led():
            if index not in self.shells:
                self._shell(index)
                self.in_background(self._load(index))

    async def _load(self, index: int) -> None:
        """As often as it takes, while it is ours."""
        while not self._is_closed:
            try:
                async with self._loads:
                    await self.loaded(index)
                return
            except KafkaError as error:
                if error.code == ErrorCode.NOT_COORDINATOR:
                    return
            await asyncio.sleep(_AGAIN_S)

    def follow(self, delta: MetadataDelta) -> None:
        """The topic came, went, or has other leaders."""
        if any(topic.name == self._topic for topic in delta.deleted.values()):
            self._give_up_all()
        if self._topic in delta.created or self._topic in delta.changed:
            self.start()

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work, loop=self._environment.loop)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def _give_up_all(self) -> None:
        for index, shell in tuple(self.shells.items()):
            self._give_up(index, shell)

    def close(self) -> None:
        """Gives all shards up; whoever waits is told to look elsewhere."""
        self._is_closed = True
        self._give_up_all()
