"""The walk over all APIs, compared with Apache Kafka; and attempts to get around ACLs."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.formats.protocol.schema import request_schema
from millstream.node.security.api_checks import API_CHECKS
from tests.integration.node.security.authorization_walk import GOLDEN, STEPS, Outcome, walk
from tests.integration.node.security.secured_broker import Secured, secured_kafka, secured_millstream


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_millstream(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture(scope="module")
def outcomes(secured: Secured) -> dict[str, Outcome]:
    return walk(secured)


def _recorded() -> dict[str, Outcome]:
    return {name: Outcome(**row) for name, row in json.loads(GOLDEN.read_text()).items()}


def test_all_outcomes_are_those_of_kafka(outcomes: dict[str, Outcome]) -> None:
    recorded = _recorded()
    assert {name: row for name, row in outcomes.items() if row != recorded[name]} == {}


def test_every_offered_api_has_a_row_and_a_step(secured: Secured) -> None:
    with secured.cluster("admin") as admin:
        offered = {row.api_key for row in admin.call("api_versions", at_most=2).api_keys}
    rows = {request_schema(name).api_key for name in API_CHECKS}
    walked = {request_schema(step.api).api_key for step in STEPS}
    assert offered <= rows
    free = {name for name, row in API_CHECKS.items() if not row.needs}
    assert offered - walked <= {request_schema(name).api_key for name in (*free, *_TOKENS)}


_TOKENS = ("create_delegation_token", "describe_delegation_token")
"""They need the token's secret key to be set, which this broker has not."""


@pytest.mark.slow
def test_kafka_still_responds_as_recorded(tmp_path: Path) -> None:
    with secured_kafka(tmp_path) as kafka:
        assert walk(kafka) == _recorded()
