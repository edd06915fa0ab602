"""Client quotas: list, set and remove them, for users, client ids and addresses."""

from collections.abc import Mapping
from dataclasses import dataclass

from millstream.admin.errors import check
from millstream.raw_client import Cluster

USER, CLIENT_ID, IP = "user", "client-id", "ip"
_MATCH_EXACT, _MATCH_DEFAULT = 0, 1

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
