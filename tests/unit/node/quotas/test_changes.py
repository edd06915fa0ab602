"""AlterClientQuotas and the filter of DescribeClientQuotas as decisions on an image."""

import math

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.metadata.image import MetadataImage, apply
from millstream.node.quotas.core.changes import (
    MATCH_ANY,
    MATCH_DEFAULT,
    MATCH_EXACT,
    FilterComponent,
    QuotaAlteration,
    QuotaOperation,
    alter_client_quotas,
    matching_quotas,
)

Parts = tuple[tuple[str, str | None], ...]
USER: Parts = (("user", "alice"),)


def changed(image: MetadataImage, entity: Parts, *operations: tuple[str, float | None]) -> MetadataImage:
    alteration = QuotaAlteration(entity, [QuotaOperation(key, value) for key, value in operations])
    decision = alter_client_quotas(image, [alteration], validate_only=False)
    assert decision.results[0].error == ErrorCode.NONE, decision.results[0].message
    return apply(image, decision.records, offset=1, epoch=1)[0]


def refused(entity: Parts, *operations: tuple[str, float | None]) -> str:
    alteration = QuotaAlteration(entity, [QuotaOperation(key, value) for key, value in operations])
    decision = alter_client_quotas(MetadataImage(), [alteration], validate_only=False)
    assert not decision.records
    assert decision.results[0].error == ErrorCode.INVALID_REQUEST
    return decision.results[0].message or ""


def test_set_change_and_remove() -> None:
    image = changed(MetadataImage(), USER, ("producer_byte_rate", 1024.0), ("request_percentage", 12.5))
    assert list(image.quotas.values()) == [{"producer_byte_rate": 1024.0, "request_percentage": 12.5}]
    image = changed(image, USER, ("producer_byte_rate", 2048.0), ("request_percentage", None))
    assert list(image.quotas.values()) == [{"producer_byte_rate": 2048.0}]
    image = changed(image, USER, ("producer_byte_rate", None))
    assert not image.quotas


def test_validate_only_changes_nothing() -> None:
    alteration = QuotaAlteration(USER, [QuotaOperation("producer_byte_rate", 1.0)])
    decision = alter_client_quotas(MetadataImage(), [alteration], validate_only=True)
    assert not decision.records and decision.results[0].error == ErrorCode.NONE


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf, 1e300, 1.5])
def test_values_that_are_refused(value: float) -> None:
    refused(USER, ("producer_byte_rate", value))


def test_a_percentage_may_be_a_fraction() -> None:
    changed(MetadataImage(), USER, ("request_percentage", 0.5), ("controller_mutation_rate", 0.25))


@pytest.mark.parametrize(
    ("entity", "says"),
    [
        ((), "empty"),
        ((("host", "x"),), "Unhandled client quota entity type"),
        ((("user", ""),), "Empty user"),
        ((("user", "a"), ("user", "b")), "twice"),
        ((("ip", "192.0.2.1"), ("user", "a")), "cannot be combined"),
        ((("ip", "no address"),), "not a valid IP"),
        ((("client-id", "x" * 40_000),), "bytes"),
    ],
)
def test_entities_that_are_refused(entity: Parts, says: str) -> None:
    assert says in refused(entity, ("producer_byte_rate", 1.0))


def test_keys_belong_to_entities() -> None:
    assert "did you mean 'producer_byte_rate'" in refused(USER, ("producer_bytes_rate", 1.0))
    assert "connection_creation_rate" in refused((("ip", None),), ("producer_byte_rate", 1.0))
    assert "twice" in refused(USER, ("producer_byte_rate", 1.0), ("producer_byte_rate", 2.0))


def test_an_entity_is_named_once() -> None:
    alteration = QuotaAlteration(USER, [QuotaOperation("producer_byte_rate", 1.0)])
    decision = alter_client_quotas(MetadataImage(), [alteration, alteration], validate_only=False)
    assert [result.error for result in decision.results] == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]


def described(*components: FilterComponent, strict: bool = False) -> list[float]:
    image = MetadataImage()
    entities: list[Parts] = [
        (("user", "alice"),),
        (("user", None),),
        (("user", "alice"), ("client-id", "app")),
        (("client-id", "app"),),
        (("ip", "192.0.2.1"),),
    ]
    for number, entity in enumerate(entities):
        key = "connection_creation_rate" if entity[0][0] == "ip" else "producer_byte_rate"
        image = changed(image, entity, (key, float(number)) if number else (key, 100.0))
    found = matching_quotas(image.quotas, components, strict=strict)
    return sorted(value for _, values in found for value in values.values())


def test_filters_choose_the_quotas_that_are_described() -> None:
    assert described() == [1.0, 2.0, 3.0, 4.0, 100.0]
    assert described(strict=True) == []
    assert described(FilterComponent("user", MATCH_EXACT, "alice")) == [2.0, 100.0]
    assert described(FilterComponent("user", MATCH_EXACT, "alice"), strict=True) == [100.0]
    assert described(FilterComponent("user", MATCH_DEFAULT, None)) == [1.0]
    assert described(FilterComponent("user", MATCH_ANY, None)) == [1.0, 2.0, 100.0]
    both = FilterComponent("user", MATCH_ANY, None), FilterComponent("client-id", MATCH_EXACT, "app")
    assert described(*both, strict=True) == [2.0]
    assert described(FilterComponent("ip", MATCH_ANY, None)) == [4.0]


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([FilterComponent("", MATCH_ANY, None)], ErrorCode.INVALID_REQUEST),
        ([FilterComponent("host", MATCH_ANY, None)], ErrorCode.UNSUPPORTED_VERSION),
        ([FilterComponent("user", MATCH_EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([FilterComponent("user", MATCH_ANY, "x")], ErrorCode.INVALID_REQUEST),
        ([FilterComponent("user", 7, None)], ErrorCode.INVALID_REQUEST),
        ([FilterComponent("user", MATCH_ANY, None)] * 2, ErrorCode.INVALID_REQUEST),
        ([FilterComponent("ip", MATCH_ANY, None), FilterComponent("user", MATCH_ANY, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_filters_that_are_refused(components: list[FilterComponent], code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refusal:
        matching_quotas({}, components, strict=False)
    assert refusal.value.code == code
