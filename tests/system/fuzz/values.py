"""Random requests of every API and version: well formed, mostly sensible, now and then absurd in what they ask for."""

import math
import random
from typing import Any
from uuid import UUID

from millstream.formats.protocol.schema import Field, Structure, request_schema
from tests.system.fuzz import batches
from tests.wire import framed, request

TOPICS = tuple(f"fuzz-{number}" for number in range(6))
PARTITIONS = 3

_RANGES = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_ABSURD_NAMES = (
    "",
    ".",
    "..",
    "a/b",
    "../../etc/passwd",
    "\x00",
    "%s%n{0}{}",
    "\u2028é\U0001f600",
    "a" * 249,
    "a" * 250,
    "n" * 32_000,
    "\x01" * 32_000,
    "9" * 5_000,
    "__cluster_metadata",
    "__consumer_offsets",
)
_SETTINGS = (
    "retention.ms",
    "retention.bytes",
    "segment.bytes",
    "segment.ms",
    "max.message.bytes",
    "compression.type",
    "cleanup.policy",
    "message.timestamp.type",
    "flush.messages",
    "flush.ms",
    "flush.before.ack",
    "index.interval.bytes",
    "min.insync.replicas",
    "no.such.setting",
)
_SETTING_VALUES = (
    "", "-1", "0", "1", "1000", "1048588", "16384", "9223372036854775807", "1e400", "NaN", "gzip", "zstd", "lz4",
    "uncompressed", "producer", "delete", "compact", "delete,compact", "LogAppendTime", "CreateTime", "true", "false",
    "9" * 5_000, "x" * 30_000,
)  # fmt: skip
# What a field of this name is usually filled with. Waiting is kept short, or nothing would be learned while it lasts.
_SENSIBLE: dict[str, tuple[Any, ...]] = {
    "acks": (-1, -1, -1, -1, 1, 1, 1, 1, 0),
    "max_wait_ms": (0, 0, 0, 0, 1, 3),
    "min_bytes": (0, 1, 1, 1000),
    "max_bytes": (1 << 20, 1 << 20, 50 << 20, 0, 1),
    "partition_max_bytes": (1 << 20, 1 << 20, 0, 1, 100),
    "timeout_ms": (1000, 100),
    "session_timeout_ms": (6000, 10_000),
    "rebalance_timeout_ms": (1, 10),
    "isolation_level": (0, 1),
    "session_id": (0, 0, 0, 1, 77),
    "session_epoch": (-1, -1, -1, 0, 1, 2),
    "replica_id": (-1,),
    "current_leader_epoch": (-1, -1, 0),
    "leader_epoch": (-1, 0, 0, 1),
    "last_fetched_epoch": (-1, -1, 0),
    "fetch_offset": (0, 0, 1, 5, 100),
    "log_start_offset": (-1, 0),
    "offset": (-1, 0, 1, 10),
    "timestamp": (-1, -2, -3, -4, -5, -6, -7, 0, 1_700_000_000_000),
    "num_partitions": (-1, 1, 2, 3, 0),
    "count": (3, 4, 2, 0),
    "replication_factor": (-1, 1, 1, 2),
    "partition_index": (0, 1, 2, 3),
    "partition": (0, 1, 2, 3),
    "index": (0, 1, 2, 3),
    "resource_type": (2, 2, 2, 4, 8, 0),
    "config_operation": (0, 0, 1, 2, 3, 4),
    "key_type": (0, 0, 1, 2),
    "endpoint_type": (1, 2),
    "response_partition_limit": (1, 5, 2000),
    "transactional_id": (None, None, None, None, "t"),
    "client_software_name": ("fuzz",),
    "client_software_version": ("1.0",),
    "producer_id": (-1, 0, 5),
    "producer_epoch": (-1, 0, 32_766, 32_767),
    "transaction_timeout_ms": (1000,),
    "allow_auto_topic_creation": (False,) * 9 + (True,),
    "broker_ids": (0, 1),
}
_ABSURD_SHARE = 0.04


class Requests:
    """Makes requests; the topics' ids are given so that requests by id meet something."""

    def __init__(self, chance: random.Random, topic_ids: list[UUID]) -> None:
        self._chance = chance
        self._topic_ids = topic_ids
        self._api = ""

    def frame(self, api: str, version: int) -> bytes:
        """A whole frame; the correlation id is 0."""
        self._api = api
        schema = request_schema(api)
        while True:
            try:
                return framed(request(api, version, self._structure(schema.root, version), 0))
            except (ValueError, AssertionError):
                pass  # a text too long for an old version, a null where none can be said: another try

    def _structure(self, structure: Structure, version: int) -> dict[str, Any]:
        sent = [each for each in structure.fields if version in each.versions]
        return {each.name: self._field(each, version) for each in sent if each.tag < 0 or self._chance.random() < 0.3}

    def _field(self, each: Field, version: int) -> Any:
        chance = self._chance
        if version in each.nullable and each.name not in _SENSIBLE and chance.random() < 0.15:
            return None
        if not each.type.startswith("[]"):
            return self._value(each, each.type, version)
        count = chance.choice((0, 1, 1, 1, 2, 3))
        if chance.random() < 0.01:
            count = 100
        items = [self._value(each, each.type[2:], version) for _ in range(count)]
        if items and chance.random() < 0.03:
            items += items  # the same one again
        return items

    def _value(self, each: Field, kind: str, version: int) -> Any:
        chance = self._chance
        if kind == "{}":
            assert each.children is not None
            return self._structure(each.children, version)
        if kind == "records":
            return batches.records(chance)
        if kind == "uuid":
            return chance.choice(self._topic_ids) if chance.random() < 0.9 else UUID(int=chance.getrandbits(128))
        if kind == "string":
            return self._text(each.name)
        absurd = chance.random() < _ABSURD_SHARE and each.name not in ("max_wait_ms", "timeout_ms")
        if not absurd and each.name in _SENSIBLE:
            return chance.choice(_SENSIBLE[each.name])
        if kind == "bool":
            return chance.random() < 0.5
        if kind == "bytes":
            return chance.randbytes(chance.randrange(20))
        if kind == "uint16":
            return chance.choice((0, 1, 9092, 65_535, chance.getrandbits(16)))
        if kind == "float64":
            return chance.choice((-1.0, 0.0, 1.0, 1e6, 1e308, math.inf, math.nan, chance.random()))
        bits = _RANGES[kind]
        return chance.choice((-1, 0, 1, 2, -(1 << bits), (1 << bits) - 1, chance.getrandbits(bits)))

    def _text(self, name: str) -> Any:
        chance = self._chance
        if name in _SENSIBLE and chance.random() > _ABSURD_SHARE:
            return chance.choice(_SENSIBLE[name])
        if chance.random() < _ABSURD_SHARE:
            return chance.choice(_ABSURD_NAMES)
        if name == "value":
            return chance.choice(_SETTING_VALUES)
        if name in ("configuration_keys",) or (name == "name" and self._api.endswith("alter_configs")):
            return chance.choice(_SETTINGS)
        if name == "resource_name":
            return chance.choice((*TOPICS, "0", "1", ""))
        if name == "name" and self._api == "create_topics":
            # The same field name for topics and their settings.
            return chance.choice((*TOPICS, *_SETTINGS, "fuzz-new"))
        return chance.choice(TOPICS)
