"""What all tiered partitions of a node share: the store, the cache, limits and counters."""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from uuid import UUID

from millstream.config.broker_config import BrokerConfig
from millstream.config.table import tier, topic
from millstream.formats.records.batch import Bytes
from millstream.node.environment import Environment
from millstream.node.metadata.image import Branch
from millstream.node.storage.index import offset_index
from millstream.node.storage.index.transaction_index import AbortedTransaction, decode_aborted
from millstream.node.storage.object_store import ObjectStore
from millstream.node.tier.cache import TierCache, range_starts
from millstream.node.tier.core import object_format
from millstream.node.tier.core.manifest import DataKey, TieredSegment
from millstream.node.tier.core.object_format import Tail
from millstream.node.tier.encryption import NO_KEYS, Keyring, ObjectCipher, WrongKeyError, unwrap
from millstream.node.tier.uploads import EncryptedObject, PreparedObject

_ABORTED_LISTS = 1000
_CIPHERS = 1000


class TierCounters:
    """For the metrics."""

    __slots__ = (
        "copied_bytes",
        "copied_segments",
        "copy_errors",
        "deleted_segments",
        "read_bytes",
        "read_errors",
        "reads",
    )

    def __init__(self) -> None:
        self.copied_bytes = 0
        self.copied_segments = 0
        self.copy_errors = 0
        self.deleted_segments = 0
        self.read_bytes = 0
        self.read_errors = 0
        self.reads = 0


class Indexes(NamedTuple):
    """What is kept in memory of a segment."""

    tail: Tail
    offsets: memoryview
    """The offset index."""
    starts: "array[int]"
    """Where its ranges begin."""
    size: int


def _decode(data: Bytes, segment: TieredSegment) -> Indexes:
    tail = object_format.decode_tail(data, segment.object_bytes)
    offsets = tail.parts.get(object_format.OFFSET_INDEX, memoryview(b""))
    return Indexes(tail, offsets, range_starts(offsets, segment.log_bytes), len(data))


class Slots:
    """Limits how many tasks do something at the same time. The limit may change."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._used = 0
        self._freed = asyncio.Event()

    async def __aenter__(self) -> None:
        while self._used >= self._limit():
            self._freed.clear()
            await self._freed.wait()
        self._used += 1

    async def __aexit__(self, *_: object) -> None:
        self._used -= 1
        self._freed.set()


class TierContext:
    def __init__(
        self,
        store: ObjectStore,
        cache: TierCache,
        environment: Environment,
        config: Callable[[], BrokerConfig],
        cluster_id: Callable[[], str],
        describe: Callable[[str], tuple[int, dict[str, str]]],
        counters: TierCounters,
        keyring: Keyring | None = None,
        branch_of: Callable[[UUID], Branch | None] = lambda topic_id: None,
    ) -> None:
        """`describe` returns the number of partitions of a topic, and its settings; `branch_of` what it is a branch
        of."""
        self.keyring = keyring
        self.branch_of = branch_of
        self._ciphers: OrderedDict[str, ObjectCipher] = OrderedDict()
        self.store = store
        self.cache = cache
        self.environment = environment
        self.config = config
        self.cluster_id = cluster_id
        self.describe = describe
        self.counters = counters
        self.copying = Slots(lambda: config()[tier.REMOTE_LOG_MANAGER_COPIER_THREAD_POOL_SIZE])
        self.reading = Slots(lambda: config()[tier.REMOTE_LOG_READER_THREADS])
        self.is_closed = False
        self._indexes: OrderedDict[str, Indexes] = OrderedDict()
        self._indexes_bytes = 0
        self._aborted: OrderedDict[str, list[AbortedTransaction]] = OrderedDict()

    def restored_from(self, topic_name: str) -> str | None:
        """The `cluster id/topic id` whose records a topic takes over."""
        return self.describe(topic_name)[1].get(topic.MILLSTREAM_TIER_RESTORE_FROM.name)

    def nonce(self) -> str:
        return f"{self.environment.randomness.getrandbits(64):016x}"

    async def read(self, segment: TieredSegment, position: int, length: int) -> Bytes:
        """A range of an object, decrypted if it is encrypted, within the limit of reads under way."""
        if segment.key is None:
            return await self._read(segment.name, position, length)
        cipher = await self._cipher(segment, segment.key)
        start, size = cipher.stored_range(position, length)
        stored = await self._read(segment.name, start, size)
        return await self.environment.offload(lambda: cipher.decrypted(stored, position, length))

    async def _read(self, name: str, position: int, length: int) -> Bytes:
        async with self.reading:
            data = await self.store.read(name, position, length)
        self.counters.reads += 1
        self.counters.read_bytes += len(data)
        return data

    async def _cipher(self, segment: TieredSegment, key: DataKey) -> ObjectCipher:
        found = self._ciphers.get(segment.name)
        if found is None:
            async with self.reading:  # a key command that does not respond must not take all threads of the node
                data_key = await self.environment.offload(lambda: unwrap(self.keyring, key, segment.name))
            found = self._ciphers[segment.name] = ObjectCipher(data_key, key, segment.name, segment.object_bytes)
            if len(self._ciphers) > _CIPHERS:
                self._ciphers.popitem(last=False)
        return found

    def encrypt(self, prepared: PreparedObject) -> EncryptedObject | PreparedObject:
        """The object as it is stored, by the settings of encryption now. May block."""
        key_id = self.config()[tier.TIER_ENCRYPTION_KEY_ID]
        if key_id is None:
            return prepared
        if self.keyring is None:
            raise WrongKeyError(NO_KEYS)
        return EncryptedObject(prepared, self.keyring, key_id)

    async def tail(self, segment: TieredSegment) -> Tail:
        """The sections of a segment after the log bytes, checked."""
        return (await self.indexes(segment)).tail

    async def load_indexes(self, segment: TieredSegment) -> None:
        await self.indexes(segment)

    async def indexes(self, segment: TieredSegment) -> Indexes:
        """The indexes of a segment; of the last segments from memory."""
        found = self._indexes.get(segment.name)
        if found is None:
            size = segment.object_bytes - segment.log_bytes
            data = await self.read(segment, segment.log_bytes, size)
            found = await self.environment.offload(partial(_decode, data, segment))
            if segment.name not in self._indexes:
                self._indexes[segment.name] = found
                self._indexes_bytes += found.size
                limit = self.config()[tier.REMOTE_LOG_INDEX_FILE_CACHE_TOTAL_SIZE_BYTES]
                while self._indexes_bytes > min(limit, tier.INDEXES_MAX_BYTES) and len(self._indexes) > 1:
                    self._indexes_bytes -= self._indexes.popitem(last=False)[1].size
        else:
            self._indexes.move_to_end(segment.name)
        if segment.name not in self._aborted:
            self._note_aborted(segment, found.tail)
        return found

    def range_starts(self, segment: TieredSegment) -> "array[int] | None":
        """Where ranges of a segment begin; None if its indexes are not in memory."""
        found = self._indexes.get(segment.name)
        if found is None:
            return None
        self._indexes.move_to_end(segment.name)
        return found.starts

    def position_before(self, segment: TieredSegment, offset: int) -> int:
        """The position of an indexed batch that is not after an offset. The indexes are in memory."""
        entries = self._indexes[segment.name].offsets
        return max(offset_index.around(entries, offset - segment.base_offset)[0][1], 0)

    def aborted(self, name: str) -> list[AbortedTransaction] | None:
        """The aborted transactions of a segment; None if they are not in memory."""
        return self._aborted.get(name)

    def _note_aborted(self, segment: TieredSegment, tail: Tail) -> None:
        self._aborted[segment.name] = decode_aborted(bytes(tail.parts[object_format.ABORTED]), 0)
        if len(self._aborted) > _ABORTED_LISTS:
            self._aborted.popitem(last=False)
