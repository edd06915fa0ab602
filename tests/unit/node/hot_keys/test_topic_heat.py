"""Rates that fade, and shares of keys."""

import json

import pytest

from millstream.node.hot_keys.topic_statistics import MAX_KEY_BYTES, KeyShares, Rate, TopicKeyStatistics, bounded


def test_a_rate_is_right_from_the_first_second_on() -> None:
    rate = Rate(100.0)
    for second in range(101, 111):
        rate.add(50, 5000, second)
        assert rate.records_per_second == pytest.approx(50)
        assert rate.bytes_per_second == pytest.approx(5000)
    rate.add(0, 0, 140.0)
    assert 0 < rate.records_per_second < 25


def test_a_hot_key_has_its_share_of_records_and_bytes() -> None:
    shares = KeyShares()
    for second in range(60):
        shares.add([(b"hot", 100)] * 6 + [(None, 100)] * 2 + [(b"\xff%d" % second, 900)] * 2, 10.0, float(second))
    document = shares.document(60.0)
    by_key = {row.get("key", "base64"): row for row in document["keys"]}
    assert by_key["hot"]["record_share"] == pytest.approx(0.6)
    assert by_key["hot"]["byte_share"] == pytest.approx(600 / 2600, abs=0.01)
    assert by_key[None]["record_share"] == pytest.approx(0.2)
    assert document["keys"][0]["key"] == "hot"
    assert any("key_base64" in row for row in document["keys"])
    json.dumps(document)


def test_partitions_and_long_keys_are_bounded() -> None:
    heat = TopicKeyStatistics(0.0)
    heat.note({number: (number, 10 * number) for number in range(500)}, 600, 1.0)
    document = heat.rates_document()
    assert document["partition_count"] == 600
    assert len(document["partitions"]) == 100
    assert document["partitions"][0] == {"partition": 499, "records_per_second": 499, "bytes_per_second": 4990}
    one, two = bounded(b"k" * 10_000), bounded(b"k" * 10_001)
    assert one != two
    assert one is not None and len(one) == MAX_KEY_BYTES
    assert bounded(None) is None
