"""Tiered storage on an S3-compatible store (moto), by the settings that users have: a URL and the environment."""

from collections.abc import Iterator

import pytest

from millstream.testing import EmbeddedBroker
from tests.integration.node.tier.tiered_topic import SETTINGS, consume, make_tiered, produce, until_tiered, value_of
from tests.system.lake.object_store import store  # noqa: F401  # a fixture

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:botocore", "ignore::DeprecationWarning:moto")


@pytest.fixture
def broker(store: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedBroker]:  # noqa: F811
    monkeypatch.setenv("AWS_ENDPOINT_URL", store["s3.endpoint"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", store["s3.access-key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", store["s3.secret-key"])
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with EmbeddedBroker({**SETTINGS, "millstream.tier.url": "s3://lake/tier/of/tests"}) as running:
        yield running


def test_records_go_to_s3_and_come_back(broker: EmbeddedBroker) -> None:
    make_tiered(broker.bootstrap_servers, "orders", {"internal.segment.bytes": "100000"})
    produce(broker.bootstrap_servers, "orders", range(3000))
    until_tiered(broker.data_dir, "orders")
    found = consume(broker.bootstrap_servers, "orders", 3000)
    assert [(each.offset(), each.value()) for each in found] == [(n, value_of(n)) for n in range(3000)]
