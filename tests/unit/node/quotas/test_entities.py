"""Which quota applies: Kafka's eight levels, one after the other."""

import pytest

from millstream.node.metadata.records import QuotaEntity
from millstream.node.quotas.core.entities import PRODUCER_BYTE_RATE, QuotaTable, Scope

Entity = frozenset[QuotaEntity]

LEVELS: list[tuple[dict[str, str | None], Scope]] = [
    ({"user": "alice", "client-id": "app"}, Scope("alice", "app")),
    ({"user": "alice", "client-id": None}, Scope("alice", "app")),
    ({"user": "alice"}, Scope("alice", "")),
    ({"user": None, "client-id": "app"}, Scope("alice", "app")),
    ({"user": None, "client-id": None}, Scope("alice", "app")),
    ({"user": None}, Scope("alice", "")),
    ({"client-id": "app"}, Scope("", "app")),
    ({"client-id": None}, Scope("", "app")),
]


def entity(**parts: str | None) -> Entity:
    return frozenset(QuotaEntity(entity_type=kind.replace("_", "-"), entity_name=name) for kind, name in parts.items())


def of(parts: dict[str, str | None]) -> Entity:
    return frozenset(QuotaEntity(entity_type=kind, entity_name=name) for kind, name in parts.items())


@pytest.mark.parametrize("first", range(len(LEVELS)))
def test_the_most_specific_level_applies(first: int) -> None:
    rows = {of(parts): {PRODUCER_BYTE_RATE: float(number + 1)} for number, (parts, _) in enumerate(LEVELS)}
    table = QuotaTable(dict(list(rows.items())[first:]))
    found = table.client_quota(PRODUCER_BYTE_RATE, "alice", "app")
    assert found is not None
    assert (found.limit, found.scope) == (first + 1, LEVELS[first][1])


def test_each_key_has_its_own_level() -> None:
    table = QuotaTable(
        {entity(user="alice"): {"consumer_byte_rate": 1.0}, entity(client_id="app"): {PRODUCER_BYTE_RATE: 2.0}}
    )
    found = table.client_quota(PRODUCER_BYTE_RATE, "alice", "app")
    assert found is not None and found.limit == 2.0
    assert table.client_quota(PRODUCER_BYTE_RATE, "alice", "other") is None


def test_each_client_of_a_default_is_counted_on_its_own() -> None:
    table = QuotaTable({entity(user=None): {PRODUCER_BYTE_RATE: 5.0}})
    scopes = set()
    for user in ("alice", "bob"):
        found = table.client_quota(PRODUCER_BYTE_RATE, user, "app")
        assert found is not None and found.entity == "user=<default>"
        scopes.add(found.scope)
    assert len(scopes) == 2


def test_an_address_has_its_own_rate_or_the_default() -> None:
    table = QuotaTable(
        {entity(ip="192.0.2.1"): {"connection_creation_rate": 3.0}, entity(ip=None): {"connection_creation_rate": 9.0}}
    )
    assert (table.connection_rate("192.0.2.1"), table.connection_rate("192.0.2.2")) == (3.0, 9.0)
    assert not table.has_client_quotas and table.has_address_quotas


def test_long_client_ids_are_stored_short_and_stay_different() -> None:
    table = QuotaTable({entity(client_id=None): {PRODUCER_BYTE_RATE: 5.0}})
    found = [table.client_quota(PRODUCER_BYTE_RATE, "u", "x" * 32_000 + end) for end in "ab"]
    assert found[0] is not None and found[1] is not None
    assert found[0].scope != found[1].scope
    assert len(found[0].scope.client_id) < 300
