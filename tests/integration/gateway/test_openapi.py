"""The description of all routes: complete, a page that needs nothing else, and true: schemathesis asks what it says."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from millstream.gateway import app as gateway_app
from millstream.gateway.http.errors import JSON
from millstream.gateway.http.openapi import openapi_routes, undocumented
from millstream.gateway.http.routes import TEXT
from millstream.gateway.server import Gateway, GatewayOptions
from millstream.testing import EmbeddedBroker

pytestmark = [pytest.mark.timeout(300)]

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    """Of its own: who asks everything also sets the registry's mode, and deletes what is not his."""
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(scope="module")
def gateway(broker: EmbeddedBroker) -> Iterator[Gateway]:
    with Gateway(GatewayOptions(broker.bootstrap_servers)) as running:
        yield running


@pytest.fixture(scope="module")
def document(gateway: Gateway) -> dict[str, Any]:
    response = httpx.get(f"{gateway.url}/openapi.json")
    assert response.status_code == 200
    return dict(response.json())


def ask_all(document: dict[str, Any], url: str, mode: GenerationMode, examples: int) -> int:
    """So many requests to each route, always the same ones; returns how many routes were asked. Streams do not end, so
    theirs are not among them."""
    schema = schemathesis.openapi.from_dict(document)
    count = 0
    with requests.Session() as session:
        for found in schema.get_all_operations():
            assert isinstance(found, Ok)
            operation = found.ok()
            if operation.path.endswith("/stream"):
                continue

            @seed(1)
            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(
                max_examples=examples,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def ask(case: Any) -> None:
                case.call_and_validate(base_url=url, session=session, checks=CHECKS, timeout=30)

            if mode is GenerationMode.NEGATIVE and not (operation.body or len(operation.query)):
                continue  # there is no wrong way to ask for it
            ask()
            count += 1
    return count


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_responses_are_as_described(document: dict[str, Any], gateway: Gateway, mode: GenerationMode) -> None:
    """Requests that fit the description, and some that do not."""
    assert ask_all(document, gateway.url, mode, 2 if mode is GenerationMode.POSITIVE else 1) > 20


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_responses_are_as_described_for_every_request(
    document: dict[str, Any], gateway: Gateway, mode: GenerationMode
) -> None:
    assert ask_all(document, gateway.url, mode, 40) > 20


def test_a_false_description_is_noticed(document: dict[str, Any], gateway: Gateway) -> None:
    """The test above could be blind."""
    right = document["paths"]["/livez"]["get"]
    wrong = right | {"responses": {"200": {"description": "", "content": {JSON: {"schema": TEXT}}}}}
    with pytest.raises(FailureGroup, match="violates schema"):
        ask_all(document | {"paths": {"/livez": {"get": wrong}}}, gateway.url, GenerationMode.POSITIVE, 1)


def test_every_route_is_described(broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is added without a word about it would be noticed here."""
    seen: list[list[str]] = []
    original = openapi_routes

    def look(routes: Any) -> Any:
        own = original(routes)
        seen.append(undocumented([*routes, *own]))
        return own

    monkeypatch.setattr(gateway_app, "openapi_routes", look)
    with Gateway(GatewayOptions(broker.bootstrap_servers)):
        pass
    assert seen == [[]]


def test_operations_have_names_of_their_own(document: dict[str, Any]) -> None:
    operations = [row for methods in document["paths"].values() for row in methods.values()]
    assert len(operations) > 30
    ids = [row["operationId"] for row in operations]
    assert len(set(ids)) == len(ids)
    assert all(row["summary"] and row["tags"] for row in operations)
    assert {"/subjects", "/consumers/{group}/poll", "/topics/{topic}/stream", "/docs"} <= set(document["paths"])


def test_the_page_needs_nothing_else(gateway: Gateway, document: dict[str, Any]) -> None:
    response = httpx.get(f"{gateway.url}/docs")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "<script" not in response.text and not re.search(r'(src|href)="(https?:)?//', response.text)
    for path in document["paths"]:
        assert path in response.text


def test_a_hostile_host_stays_text(gateway: Gateway) -> None:
    response = httpx.get(f"{gateway.url}/docs", headers={"Host": "localhost"})
    assert response.status_code == 200 and "http://localhost/" in response.text
