"""Client quotas: list, set and remove them, for users, client ids and addresses."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millstream.admin.errors import InvalidArgumentError, NotFoundError, check
from millstream.common.close_match import did_you_mean
from millstream.common.quantities import parse_size
from millstream.raw_client import Cluster

USER, CLIENT_ID, IP = "user", "client-id", "ip"
_MATCH_EXACT, _MATCH_DEFAULT = 0, 1
DEFAULT_NAME = "<default>"
UNITS = {
    "producer_byte_rate": "bytes/s written",
    "consumer_byte_rate": "bytes/s read",
    "request_percentage": "% of one core",
    "controller_mutation_rate": "partitions/s created or deleted",
    "connection_creation_rate": "connections/s",
}
"""All quotas, with what their values mean."""
OF_ADDRESSES = ("connection_creation_rate",)
_SIZES = ("producer_byte_rate", "consumer_byte_rate")

Entity = Mapping[str, str | None]
"""Types and names of an entity; the name None is the default."""


@dataclass(frozen=True, slots=True)
class EntityQuotas:
    entity: Entity
    values: Mapping[str, float]

    def __str__(self) -> str:
        return entity_text(self.entity)


def entity_text(entity: Entity) -> str:
    """`user=alice, client-id=<default>`."""
    return ", ".join(
        f"{kind}={'<default>' if entity[kind] is None else entity[kind]}"
        for kind in (USER, CLIENT_ID, IP)
        if kind in entity
    )


def make_entity(user: str | None = None, client_id: str | None = None, ip: str | None = None) -> Entity:
    """The entity with these names; `<default>` is the default. InvalidArgumentError if they exclude each other."""
    if ip is not None and (user is not None or client_id is not None):
        raise InvalidArgumentError("an address cannot be combined with a user or a client id")
    given = {USER: user, CLIENT_ID: client_id, IP: ip}
    return {kind: None if name == DEFAULT_NAME else name for kind, name in given.items() if name is not None}


def check_key(key: str) -> None:
    if key not in UNITS:
        hint = did_you_mean(key, UNITS, otherwise=f"there are {', '.join(UNITS)}")
        raise InvalidArgumentError(f"{key} is not a quota; {hint}")


def read_value(key: str, text: str) -> float:
    """The value of a quota as users write it: byte rates may have a unit (`10MB`)."""
    check_key(key)
    try:
        value = float(parse_size(text)) if key in _SIZES else float(text)
        if not math.isfinite(value):
            raise ValueError(text)
    except ValueError:
        example = "10MB" if key in _SIZES else "10"
        raise InvalidArgumentError(f"{key}={text}: write a number, for example {key}={example}") from None
    return value


class QuotaAdmin:
    """Every method may raise WireError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def quotas(self, entity: Entity | None = None) -> list[EntityQuotas]:
        """All quotas, or those of entities with these parts."""
        components = [
            {"entity_type": kind, "match_type": _MATCH_DEFAULT if name is None else _MATCH_EXACT, "match": name}
            for kind, name in (entity or {}).items()
        ]
        response = self._cluster.call("describe_client_quotas", components=components, strict=False)
        check("quotas", response)
        found = [
            EntityQuotas(
                {part.entity_type: part.entity_name for part in entry.entity},
                {row.key: row.value for row in entry.values},
            )
            for entry in response.entries
        ]
        return sorted(found, key=str)

    def alter(self, entity: Entity, changes: Mapping[str, float | None], *, validate_only: bool = False) -> None:
        """Sets quotas; None removes one."""
        parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
        operations = [
            {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
            for key, value in changes.items()
        ]
        response = self._cluster.call(
            "alter_client_quotas", entries=[{"entity": parts, "ops": operations}], validate_only=validate_only
        )
        for row in response.entries:
            check(f"quotas of {entity_text(entity)}", row)

    def remove(self, entity: Entity, keys: Sequence[str] = ()) -> list[str]:
        """Removes quotas of an entity, all or those given; returns them. NotFoundError for what it does not have."""
        for key in keys:
            check_key(key)
        present = [row.values for row in self.quotas(entity) if dict(row.entity) == dict(entity)]
        if not present:
            raise NotFoundError("this entity has no quotas: `millstream quota list` shows those that exist")
        missing = [key for key in keys if key not in present[0]]
        if missing:
            raise NotFoundError(f"this entity has no quota {missing[0]}; it has {', '.join(present[0])}")
        removed = list(keys or present[0])
        self.alter(entity, dict.fromkeys(removed))
        return removed
