"""What the settings of a topic say about its table, and where the table is.

The settings are declared in `config.table.topic`. Stores and catalogs, with their passwords, are options of the server,
not of topics.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from millstream.config.table import topic as declared
from millstream.lake.errors import LakeError, LakeOptionError
from millstream.lake.ledger import TOPIC_ID_PROPERTY, TOPIC_PROPERTY
from millstream.lake.options import CATALOG_PREFIX, TableOptions, parse_options
from millstream.raw_client import Cluster, TopicInfo

_TOPIC_RESOURCE: Final = 2
_TOPICS_PER_REQUEST: Final = 500
_SETTINGS: Final = (
    declared.TABLE,
    declared.TABLE_LOCATION,
    declared.TABLE_COLUMNS,
    declared.TABLE_PARTITION_BY,
    declared.TABLE_MODE,
    declared.TABLE_KEYS,
    declared.CLEANUP_POLICY,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTable:
    """A topic that is a table, by its settings."""

    topic: str
    topic_id: str
    format: str
    partitions: int = 1
    location: str = ""
    columns: str = "auto"
    partition_by: tuple[str, ...] = ()
    is_upsert: bool = False
    keys: tuple[str, ...] = ()


def table_of(info: TopicInfo, settings: Mapping[str, str | None]) -> TopicTable | None:
    """None if the topic is no table."""
    values: dict[str, Any] = {}
    for each in _SETTINGS:
        text = settings.get(each.name)
        values[each.name] = each.default if text is None else each.parse(text)
    if values[declared.TABLE.name] == "none":
        return None
    return TopicTable(
        topic=info.name,
        topic_id=str(info.topic_id),
        format=values[declared.TABLE.name],
        partitions=len(info.partitions),
        location=values[declared.TABLE_LOCATION.name],
        columns=values[declared.TABLE_COLUMNS.name],
        partition_by=tuple(values[declared.TABLE_PARTITION_BY.name]),
        is_upsert=values[declared.TABLE_MODE.name] == "upsert",
        keys=tuple(values[declared.TABLE_KEYS.name]),
    )


def find_tables(cluster: Cluster) -> dict[str, TopicTable]:
    """All topics of the cluster that are tables, by name."""
    infos = {name: info for name, info in cluster.topics().items() if not info.is_internal}
    found = {}
    for name, settings in _settings_of(cluster, list(infos)).items():
        table = table_of(infos[name], settings)
        if table is not None:
            found[name] = table
    return found


def is_compacted(cluster: Cluster, topic: str) -> bool:
    """Whether the broker deletes records of this topic because of their keys."""
    policy = _settings_of(cluster, [topic]).get(topic, {}).get(declared.CLEANUP_POLICY.name)
    return "compact" in (policy or "")


def _settings_of(cluster: Cluster, topics: list[str]) -> dict[str, dict[str, str | None]]:
    """Topics that are gone, or that this user may not see, are left out."""
    found = {}
    names = [each.name for each in _SETTINGS]
    for begin in range(0, len(topics), _TOPICS_PER_REQUEST):
        resources = [
            {"resource_type": _TOPIC_RESOURCE, "resource_name": topic, "configuration_keys": names}
            for topic in topics[begin : begin + _TOPICS_PER_REQUEST]
        ]
        response = cluster.call("describe_configs", resources=resources, include_synonyms=False)
        for row in response.results:
            if row.error_code == 0:
                found[row.resource_name] = {each.name: each.value for each in row.configs or ()}
    return found


@dataclass(frozen=True, slots=True)
class Warehouse:
    """Where tables are made that have no location of their own, and the options of stores and catalogs."""

    location: str
    options: Mapping[str, str] = field(default_factory=dict)
    namespace: str = "default"

    @property
    def has_catalog(self) -> bool:
        return any(name.lower().startswith(CATALOG_PREFIX) for name in self.options)

    def options_of(self, table: TopicTable, name: str | None = None) -> TableOptions:
        """`name`: of the table, if it is not that of the topic."""
        called = name or table.topic
        path = table.location or f"{self.location.rstrip('/')}/{called}"
        given = {**self.options, "path": path, "tableFormat": table.format}
        if table.format == "delta":
            given = {key: value for key, value in given.items() if not key.lower().startswith(CATALOG_PREFIX)}
        elif self.has_catalog:
            given["table"] = f"{self.namespace}.{re.sub(r'[^A-Za-z0-9_]', '_', called)}"
        if table.partition_by:
            given["partitionBy"] = ",".join(table.partition_by)
        properties = ((TOPIC_PROPERTY, table.topic), (TOPIC_ID_PROPERTY, table.topic_id))
        return replace(parse_options(given), properties=properties)

    def place(self, table: TopicTable, owner: Callable[[TableOptions], str | None]) -> TableOptions:
        """The options of the table of this very topic.

        `owner`: the id of the topic whose table is there, None if there is no table, empty if it is of no topic. A
        topic that was deleted and made again is another topic: its table has a part of the id in its name.
        """
        plain = self.options_of(table)
        found = owner(plain)
        if found in (None, table.topic_id):
            return plain
        if not found:
            raise LakeError(
                f"the table at {plain.name} was not made by `millstream table serve`: set millstream.table.location of "
                f"{table.topic} to another place"
            )
        if table.location:
            raise LakeOptionError(
                f"the table at {plain.name} belongs to another topic (id {found}): the topic was deleted and made "
                "again, or two topics have one location. Set millstream.table.location to another place, or delete the "
                "table"
            )
        return self.options_of(table, f"{table.topic}-{table.topic_id[:8]}")
