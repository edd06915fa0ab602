"""Which quota applies: Kafka's entities (user, client id, both, their defaults, address) and their precedence.

`QuotaTable` is compiled from the metadata image. It finds the limit of a client in at most eight look-ups, and the
*scope* of the limit: who shares it. A quota of a user is shared by all client ids of the user; a quota of a default
entity is counted for each user or client id on its own.
"""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from millstream.node.metadata.records import QuotaEntity

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"
CLIENT_KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
"""The keys of quotas of users and client ids."""

LONGEST_NAME = 256
"""Longer client ids are stored as their beginning and a digest: a client id may have 32 KB."""

Quotas = Mapping[frozenset[QuotaEntity], Mapping[str, float]]


class Scope(NamedTuple):
    """The clients that share one limit. An empty part is not counted separately."""

    user: str
    client_id: str


class AppliedQuota(NamedTuple):
    limit: float
    scope: Scope
    entity: str
    """The entity that has the quota, for people: `user=alice, client-id=<default>`."""


class QuotaTable:
    """The quotas of one metadata image."""

    def __init__(self, quotas: Quotas) -> None:
        self._clients: dict[tuple[str | None, ...], Mapping[str, float]] = {}
        self._addresses: dict[str, float] = {}
        self._default_address: float | None = None
        for entity, values in quotas.items():
            parts = {part.entity_type: part.entity_name for part in entity}  # any order
            if IP in parts:
                self._add_address(parts[IP], values)
            else:
                self._clients[_level(parts)] = values
        keys = {key for values in self._clients.values() for key in values}
        self.has_client_quotas = bool(keys)
        self.has_mutation_quotas = CONTROLLER_MUTATION_RATE in keys
        self.has_address_quotas = bool(self._addresses) or self._default_address is not None

    def _add_address(self, address: str | None, values: Mapping[str, float]) -> None:
        limit = values.get(CONNECTION_CREATION_RATE)
        if limit is None:
            return
        if address is None:
            self._default_address = limit
        else:
            self._addresses[address] = limit

    def client_quota(self, key: str, user: str, client_id: str) -> AppliedQuota | None:
        """The quota of a client, by Kafka's precedence; None without one."""
        both, only_user, only_client = Scope(user, client_id), Scope(user, ""), Scope("", client_id)
        for level, scope in (
            ((USER, user, CLIENT_ID, client_id), both),
            ((USER, user, CLIENT_ID, None), both),
            ((USER, user), only_user),
            ((USER, None, CLIENT_ID, client_id), both),
            ((USER, None, CLIENT_ID, None), both),
            ((USER, None), only_user),
            ((CLIENT_ID, client_id), only_client),
            ((CLIENT_ID, None), only_client),
        ):
            values = self._clients.get(level)
            limit = values.get(key) if values is not None else None
            if limit is not None:
                return AppliedQuota(limit, Scope(stored_name(scope.user), stored_name(scope.client_id)), _text(level))
        return None

    def connection_rate(self, address: str) -> float | None:
        """Connections per second of an address; None without a quota."""
        return self._addresses.get(address, self._default_address)

    def has_own_rate(self, address: str) -> bool:
        """Whether the address has a quota of its own, and not only the default one."""
        return address in self._addresses


def _level(parts: Mapping[str, str | None]) -> tuple[str | None, ...]:
    level: tuple[str | None, ...] = ()
    for kind in (USER, CLIENT_ID):
        if kind in parts:
            level += (kind, parts[kind])
    return level


def _text(level: tuple[str | None, ...]) -> str:
    return ", ".join(
        f"{kind}={'<default>' if name is None else stored_name(name)}"
        for kind, name in zip(level[::2], level[1::2], strict=True)
    )


def stored_name(name: str) -> str:
    """The name as it is stored for counting: short, and different for different names."""
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.blake2b(name.encode(errors="replace"), digest_size=16).hexdigest()
    return f"{name[: LONGEST_NAME - 64]}…{digest}"
