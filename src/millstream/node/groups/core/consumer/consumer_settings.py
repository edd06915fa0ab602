"""The settings of consumer groups: the broker's, and what was set for a single group."""

from typing import TYPE_CHECKING

from millstream.config.group_config import (
    CONSUMER_ASSIGNMENT_INTERVAL_MS,
    CONSUMER_HEARTBEAT_INTERVAL_MS,
    CONSUMER_SESSION_TIMEOUT_MS,
    GroupConfig,
)
from millstream.config.table import consumer_groups as settings

if TYPE_CHECKING:
    from millstream.node.groups.core.group_shard import GroupShard


class ConsumerSettings:
    def __init__(self, shard: "GroupShard") -> None:
        self._shard = shard

    def session_timeout_ms(self, group_id: str) -> int:
        return int(self._of_group(group_id)[CONSUMER_SESSION_TIMEOUT_MS])

    def heartbeat_interval_ms(self, group_id: str) -> int:
        return int(self._of_group(group_id)[CONSUMER_HEARTBEAT_INTERVAL_MS])

    def assignment_interval_ms(self, group_id: str) -> int:
        return int(self._of_group(group_id)[CONSUMER_ASSIGNMENT_INTERVAL_MS])

    @property
    def max_size(self) -> int:
        return self._shard.config()[settings.MAX_SIZE]

    @property
    def assignors(self) -> tuple[str, ...]:
        return self._shard.config()[settings.ASSIGNORS]

    @property
    def allows_upgrade(self) -> bool:
        return self._shard.config()[settings.MIGRATION_POLICY] in ("bidirectional", "upgrade")

    @property
    def allows_downgrade(self) -> bool:
        return self._shard.config()[settings.MIGRATION_POLICY] in ("bidirectional", "downgrade")

    def _of_group(self, group_id: str) -> GroupConfig:
        return GroupConfig(self._shard.group_settings(group_id), self._shard.config())
