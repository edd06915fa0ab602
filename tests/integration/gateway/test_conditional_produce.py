"""`If-Match` on produce: 412 with the partition's end, ETags, and requests that cannot be conditional."""

import concurrent.futures
import itertools
from collections.abc import Iterator

import httpx
import pytest

from millstream.gateway.server import Gateway
from tests.waiting import TIMEOUT_SECONDS

_numbers = itertools.count()
_VALUE = {"value": "eA=="}


@pytest.fixture
def http(gateway: Gateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{gateway.address}", timeout=TIMEOUT_SECONDS) as client:
        yield client


@pytest.fixture
def topic(http: httpx.Client) -> str:
    name = f"conditional-{next(_numbers)}"
    assert http.request("POST", "/topics", json={"name": name, "partitions": 2}).status_code in (200, 201)
    return name


def test_a_record_is_written_at_the_expected_end(http: httpx.Client, topic: str) -> None:
    offsets = f"/topics/{topic}/partitions/1/offsets"
    read = http.request("GET", offsets)
    assert read.json() == {"beginning_offset": 0, "end_offset": 0} and read.headers["ETag"] == '"0"'
    path, body = f"/topics/{topic}/messages", {**_VALUE, "partition": 1}
    written = http.request("POST", path, json=body, headers={"If-Match": read.headers["ETag"]})
    assert written.status_code == 200 and written.json()["offset"] == 0 and written.headers["ETag"] == '"1"'
    refused = http.request("POST", path, json=body, headers={"If-Match": '"0"'})
    assert refused.status_code == 412 and refused.headers["ETag"] == '"1"'
    assert refused.json()["error_code"] == 41201 and refused.json()["end_offset"] == 1
    again = http.request("POST", path, json=body, headers={"If-Match": refused.headers["ETag"]})
    assert again.json()["offset"] == 1
    assert http.request("GET", offsets).headers["ETag"] == '"2"'
    assert "ETag" not in http.request("POST", path, json=body).headers  # without a condition


def test_a_batch_is_written_as_a_whole(http: httpx.Client, topic: str) -> None:
    messages = [{**_VALUE, "partition": 0}] * 3
    written = http.request(
        "POST", f"/topics/{topic}/messages/batch", json={"messages": messages}, headers={"If-Match": '"0"'}
    )
    assert [row["offset"] for row in written.json()["offsets"]] == [0, 1, 2] and written.headers["ETag"] == '"3"'
    records = {"records": [{"value": {"a": 1}, "partition": 0}]}
    path = f"/v1/topics/{topic}/produce"
    assert http.request("POST", path, json=records, headers={"If-Match": '"1"'}).status_code == 412
    assert http.request("POST", path, json=records, headers={"If-Match": '"3"'}).headers["ETag"] == '"4"'


@pytest.mark.parametrize("given", ["*", "5", '"x"', 'W/"5"', '"1", "2"', '"99999999999999999999"', ""])
def test_an_if_match_that_is_not_an_offset_is_refused(http: httpx.Client, topic: str, given: str) -> None:
    body = {**_VALUE, "partition": 0}
    assert http.request("POST", f"/topics/{topic}/messages", json=body, headers={"If-Match": given}).status_code == 400


def test_one_partition_is_needed(http: httpx.Client, topic: str) -> None:
    path, condition = f"/topics/{topic}/messages/batch", {"If-Match": '"0"'}
    two = {"messages": [{**_VALUE, "partition": 0}, {**_VALUE, "partition": 1}]}
    assert http.request("POST", path, json=two, headers=condition).status_code == 422
    assert http.request("POST", path, json={"messages": [_VALUE]}, headers=condition).status_code == 422
    assert http.request("GET", f"/topics/{topic}/partitions/7/offsets").status_code == 404
    assert http.request("GET", f"/topics/{topic}/partitions/x/offsets").status_code == 404


def test_of_many_callers_one_wins(http: httpx.Client, topic: str) -> None:
    def write(_: int) -> int:
        body = {**_VALUE, "partition": 0}
        return int(
            http.request("POST", f"/topics/{topic}/messages", json=body, headers={"If-Match": '"0"'}).status_code
        )

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        statuses = sorted(pool.map(write, range(8)))
    assert statuses == [200] + [412] * 7
