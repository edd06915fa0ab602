"""Decisions on quotas: AlterClientQuotas (49), and the filter of DescribeClientQuotas (48), with Kafka's rules."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address

from millstream.common.close_match import did_you_mean
from millstream.common.lazy_dataclass import dataclass
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.metadata.image import MetadataImage
from millstream.node.metadata.records import (
    ClientQuotaRecord,
    Decision,
    DecisionResult,
    MetadataRecord,
    QuotaEntity,
    refusal,
)
from millstream.node.quotas.core.entities import (
    CLIENT_ID,
    CLIENT_KEYS,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    USER,
    Quotas,
)

MAX_ENTITY_NAME_BYTES = 32767
MAX_ENTITIES = 10_000
"""The maximum number of entities with quotas: every node keeps them in memory and in snapshots."""
_LARGEST = {PRODUCER_BYTE_RATE: 2.0**63, CONSUMER_BYTE_RATE: 2.0**63, CONNECTION_CREATION_RATE: 2.0**31 - 1}
"""The largest values of keys whose values are whole numbers: long and int in Kafka."""


@dataclass(frozen=True, slots=True)
class QuotaOperation:
    key: str
    value: float | None
    """None removes the quota."""


@dataclass(frozen=True, slots=True)
class QuotaAlteration:
    entity: tuple[tuple[str, str | None], ...]
    """Types and names; the name None is the default."""
    operations: Sequence[QuotaOperation]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaResult(DecisionResult):
    entity: tuple[tuple[str, str | None], ...]


def alter_client_quotas(
    image: MetadataImage, alterations: Sequence[QuotaAlteration], *, validate_only: bool
) -> Decision[QuotaResult]:
    """Each entity succeeds or fails on its own."""
    records: list[MetadataRecord] = []
    results: list[QuotaResult] = []
    seen: set[frozenset[tuple[str, str | None]]] = set()
    added = 0
    for alteration in alterations:
        try:
            if frozenset(alteration.entity) in seen:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "The request names an entity twice; name it once.")
            seen.add(frozenset(alteration.entity))
            made, is_new = _alter(image.quotas, alteration)
            added += is_new
            if is_new and len(image.quotas) + added > MAX_ENTITIES:
                raise KafkaError(
                    ErrorCode.POLICY_VIOLATION,
                    f"{MAX_ENTITIES} entities have quotas, which is the limit: use a quota of a default entity.",
                )
        except KafkaError as error:
            code, message = refusal(error)
            results.append(QuotaResult(entity=alteration.entity, error=code, message=message))
            continue
        records += made
        results.append(QuotaResult(entity=alteration.entity))
    return Decision(() if validate_only else tuple(records), tuple(results))


def _alter(quotas: Quotas, alteration: QuotaAlteration) -> tuple[list[ClientQuotaRecord], bool]:
    entity = tuple(QuotaEntity(entity_type=kind, entity_name=name) for kind, name in alteration.entity)
    keys = _keys(_checked(alteration.entity))
    present = quotas.get(frozenset(entity), {})
    records: list[ClientQuotaRecord] = []
    named: set[str] = set()
    for operation in alteration.operations:
        key, value = operation.key, operation.value
        if key in named:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"The quota {key} is named twice for one entity.")
        named.add(key)
        if value is None:
            if key in present:
                records.append(ClientQuotaRecord(entity=entity, key=key, value=0.0, remove=True))
            continue
        _check_value(keys, key, value)
        if present.get(key) != value:
            records.append(ClientQuotaRecord(entity=entity, key=key, value=value))
    return records, not present and any(not record.remove for record in records)


def _checked(entity: Sequence[tuple[str, str | None]]) -> Mapping[str, str | None]:
    if not entity:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity: name a user, client-id or ip.")
    parts: dict[str, str | None] = {}
    for kind, name in entity:
        if kind in parts:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid client quota entity: it has {kind} twice.")
        if kind not in (USER, CLIENT_ID, IP):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Unhandled client quota entity type: {kind[:100]!r}; use user, client-id or ip.",
            )
        if name == "":
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Empty {kind} not supported; the default is a null name.")
        if name is not None and len(name.encode(errors="replace")) > MAX_ENTITY_NAME_BYTES:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"The {kind} has more than {MAX_ENTITY_NAME_BYTES} bytes, which no request header can have.",
            )
        parts[kind] = name
    return parts


def _keys(parts: Mapping[str, str | None]) -> Sequence[str]:
    if IP not in parts:
        return CLIENT_KEYS
    if len(parts) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Invalid quota entity combination: an ip cannot be combined with a user or client-id.",
        )
    address = parts[IP]
    if address is not None:
        try:
            ip_address(address)
        except ValueError:
            # Kafka also resolves host names. Addresses of connections are numbers, and a resolver may block.
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"{address[:100]!r} is not a valid IP address, for example 192.0.2.7."
            ) from None
    return (CONNECTION_CREATION_RATE,)


def _check_value(keys: Sequence[str], key: str, value: float) -> None:
    if key not in keys:
        hint = did_you_mean(key, keys, otherwise=f"this entity may have {', '.join(keys)}.")
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Invalid configuration key {key[:100]}; {hint}")
    if not value > 0 or math.isinf(value):  # not: NaN
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Quota {key} must be greater than 0, not {value}. Remove the quota to allow any rate.",
        )
    largest = _LARGEST.get(key)
    if largest is not None:
        if value > largest:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Proposed value for {key} is too large: {value:g}.")
        if abs(value % 1.0) > 1e-6:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{key} cannot be a fractional value, as {value:g} is.")


MATCH_EXACT, MATCH_DEFAULT, MATCH_ANY = 0, 1, 2


@dataclass(frozen=True, slots=True)
class FilterComponent:
    entity_type: str
    match_type: int
    match: str | None


def matching_quotas(
    quotas: Quotas, components: Iterable[FilterComponent], *, strict: bool
) -> Iterator[tuple[frozenset[QuotaEntity], Mapping[str, float]]]:
    """The entities that the filter selects. Strict: entities without other parts than those of the filter."""
    exact: dict[str, str | None] = {}
    any_name: set[str] = set()
    for component in components:
        kind = component.entity_type
        _check_component(component, kind in exact or kind in any_name)
        if component.match_type == MATCH_ANY:
            any_name.add(kind)
        else:
            exact[kind] = component.match
    wanted = exact.keys() | any_name
    if IP in wanted and len(wanted) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination: ip cannot be used with user or client-id.",
        )
    if strict and not wanted:
        return iter(())  # no entity has no parts
    return ((entity, values) for entity, values in quotas.items() if _matches(entity, exact, wanted, strict))


def _matches(
    entity: frozenset[QuotaEntity], exact: Mapping[str, str | None], wanted: Iterable[str], strict: bool
) -> bool:
    parts = {part.entity_type: part.entity_name for part in entity}  # any order
    if strict and parts.keys() != set(wanted):
        return False
    return all(kind in parts for kind in wanted) and all(parts[kind] == name for kind, name in exact.items())


def _check_component(component: FilterComponent, is_repeated: bool) -> None:
    kind = component.entity_type
    if not kind:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
    if is_repeated:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Entity type {kind[:100]} cannot appear more than once in the filter."
        )
    if kind not in (USER, CLIENT_ID, IP):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind[:100]}")
    if component.match_type not in (MATCH_EXACT, MATCH_DEFAULT, MATCH_ANY):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}")
    if (component.match is None) == (component.match_type == MATCH_EXACT):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "A component with an exact match needs a name, and the other match types have none.",
        )
