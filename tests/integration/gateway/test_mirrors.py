"""Mirror links over HTTP."""

from collections.abc import Iterator

import httpx
import pytest

from millstream.gateway.server import Gateway, GatewayOptions
from millstream.testing import EmbeddedBroker
from tests.mirrors import Mirror, fresh, make_source_topic, produce, read_all
from tests.waiting import eventually


@pytest.fixture(scope="module")
def source() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(scope="module")
def here() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(scope="module")
def http(here: EmbeddedBroker) -> Iterator[httpx.Client]:
    with (
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


def test_mirrors_fail_over_and_refuse_wrong_requests(http: httpx.Client, source: EmbeddedBroker) -> None:
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


def test_a_link_is_compared_and_reversed(http: httpx.Client, source: EmbeddedBroker, here: EmbeddedBroker) -> None:
    topic = make_source_topic(source.bootstrap_servers, fresh("back"))
    produce(source.bootstrap_servers, topic, ["a", "b"])
    settings = {"interval.ms": "200"}
    body = {"name": "back", "from": source.bootstrap_servers, "topics": topic, "settings": settings}
    assert http.post("/mirrors", json=body).status_code == 201
    mirror = Mirror("back", source.bootstrap_servers, here.bootstrap_servers)
    mirror.await_equal(topic)
    compared = http.post("/mirrors/back/verify", json={"topics": [topic]}).json()
    assert (compared["equal"], compared["complete"]) == (True, True)
    assert [(row["topic"], row["start"], row["end"]) for row in compared["partitions"]] == [(topic, 0, 2)]
    assert http.post("/mirrors/back/reverse", json={}).status_code == 400  # it is not promoted
    http.post("/mirrors/back/pause")
    produce(source.bootstrap_servers, topic, ["lost", "lost too"])
    http.post("/mirrors/back/failover", json={})
    produce(here.bootstrap_servers, topic, ["new"])
    compared = http.post("/mirrors/back/verify", json={}).json()
    assert compared["equal"] is False and "batch at offset" in compared["partitions"][0]["difference"], compared

    wrong: list[tuple[str, dict[str, object], int, str]] = [
        ("verify", {"topics": ["x"]}, 404, "not a mirror topic"),
        ("verify", {"timeout_s": 0}, 422, "timeout_s"),
        ("verify", {"source": {"ssl.ca.location": "/etc/hostname"}}, 422, "ssl.ca.location"),
        ("verify", {"source": {"security.protocol": "SASL_PLAINTEXT"}}, 422, "sasl.mechanism"),
        ("reverse", {"dry_run": "yes"}, 422, "dry_run"),
        ("reverse", {"back": {"topics": ".*"}}, 422, "topics"),
        ("reverse", {"source": {"sasl.oauthbearer.token.endpoint.url": "file:///x"}}, 422, "endpoint.url"),
        (
            "reverse",
            {"source": {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
             | {"sasl.username": "a", "sasl.password": "hidden-9"}},
            502,
            f"the source {source.bootstrap_servers}",
        ),
    ]  # fmt: skip
    for action, request, status, reason in wrong:
        refused = http.post(f"/mirrors/back/{action}", json=request)
        assert refused.status_code == status, refused.text
        assert reason in refused.json()["message"] and "hidden-9" not in refused.text

    planned = http.post("/mirrors/back/reverse", json={"dry_run": True}).json()
    removed = {"topic": topic, "partition": 0, "end": 2, "source_end": 4, "records": 2}
    assert planned == {"dry_run": True, "removed": [removed]}
    assert http.get("/mirrors/back").status_code == 200
    done = http.post("/mirrors/back/reverse", json={"to_here": here.bootstrap_servers, "back": settings})
    assert done.json() == {"dry_run": False, "removed": [removed]}
    assert http.get("/mirrors/back").status_code == 404  # the link is at the old source now
    Mirror("back", here.bootstrap_servers, source.bootstrap_servers).await_equal(topic)
    assert [row[2] for row in read_all(source.bootstrap_servers, topic)] == [b"a", b"b", b"new"]


def _is(found: object, expected: object) -> None:
    assert found == expected
