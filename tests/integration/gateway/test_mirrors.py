"""Mirror links over HTTP."""

from collections.abc import Iterator

import httpx
import pytest

from millstream.gateway.server import Gateway, GatewayOptions
from millstream.testing import EmbeddedBroker
from tests.mirrors import fresh, make_source_topic, produce
from tests.waiting import eventually


@pytest.fixture(scope="module")
def source() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with (
        EmbeddedBroker() as here,
        Gateway(GatewayOptions(here.bootstrap_servers)) as gateway,
        httpx.Client(base_url=gateway.url, timeout=70, trust_env=False) as client,
    ):
        yield client


def test_a_link_over_http(http: httpx.Client, source: EmbeddedBroker) -> None:
    topic = make_source_topic(source.bootstrap_servers, fresh("orders"))
    produce(source.bootstrap_servers, topic, ["a", "b"])
    body = {"name": "west", "from": source.bootstrap_servers, "topics": topic, "settings": {"interval.ms": "200"}}
    made = http.post("/mirrors", json=body)
    assert made.status_code == 201, made.text
    assert http.post("/mirrors", json=body).status_code == 400

    def is_copied() -> None:
        found = http.get("/mirrors/west").json()["topics"]
        assert [(each["state"], each["partitions"][0]["end"]) for each in found] == [("mirroring", 2)]

    eventually(is_copied)
    (link,) = http.get("/mirrors").json()["mirrors"]
    assert (link["name"], link["source"], link["paused"]) == ("west", source.bootstrap_servers, False)
    assert http.post("/mirrors/west/pause").json()["paused"] is True
    assert http.post("/mirrors/west/promote", json={}).status_code == 400  # it is paused
    assert http.post("/mirrors/west/resume").json()["paused"] is False
    assert http.delete("/mirrors/west").status_code == 400  # it has mirror topics
    promoted = http.post("/mirrors/west/promote", json={"topics": [topic]})
    assert (promoted.status_code, promoted.json()) == (202, {"promoting": [topic]})

    def is_promoted() -> None:
        assert http.get("/mirrors/west").json()["topics"][0]["state"] == "promoted"

    eventually(is_promoted)
    assert http.delete("/mirrors/west").status_code == 204
    assert http.get("/mirrors/west").status_code == 404


def test_failover_and_mistakes(http: httpx.Client, source: EmbeddedBroker) -> None:
    topic = make_source_topic(source.bootstrap_servers, fresh("lost"))
    body = {"name": "gone", "from": source.bootstrap_servers, "topics": topic, "settings": {"interval.ms": "200"}}
    assert http.post("/mirrors", json=body).status_code == 201
    eventually(lambda: _is(len(http.get("/mirrors/gone").json()["topics"]), 1))
    missing = http.post("/mirrors/gone/failover", json={}).json()["missing"]
    assert [(row["topic"], row["end"]) for row in missing] == [(topic, 0)]
    assert http.post("/mirrors/gone/failover", json={"topics": "x"}).status_code == 422
    assert http.post("/mirrors/gone/failover", json={"topics": ["x"]}).status_code == 404
    assert http.post("/mirrors", json={"name": "x"}).status_code == 422
    assert http.post("/mirrors", json=body | {"name": "y", "settings": {"colour": "red"}}).status_code == 400
    assert http.get("/mirrors/unknown").status_code == 404


def _is(found: object, expected: object) -> None:
    assert found == expected
