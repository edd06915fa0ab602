"""Options of the source, and the arithmetic behind them: no Spark, no broker."""

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.raw_client import EARLIEST, LATEST, TopicPartition
from millstream.spark.errors import CheckpointError, DataLossError, OptionError
from millstream.spark.options import ReadOptions, parse_read_options
from millstream.spark.read_options import READ_OPTIONS
from millstream.spark.source.limits import Range, at_most_bytes, at_most_offsets, pending_offsets, split_ranges
from millstream.spark.source.log_view import Topics, resume
from millstream.spark.source.offsets import StreamOffset, positions_of
from millstream.spark.source.positions import AllPartitions, AtTime, Committed, PerPartition
from tests.repository import REPOSITORY

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}
P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))


def parsed(**more: str) -> ReadOptions:
    return parse_read_options({name.lower(): value for name, value in (BASE | more).items()})


def without(*names: str, **more: str) -> dict[str, str]:
    return {name: value for name, value in (BASE | more).items() if name not in names}


class TestOptions:
    def test_defaults_are_those_of_spark_sql_kafka_but_for_isolation(self) -> None:
        options = parsed()
        assert options.starting is None and options.ending == AllPartitions(LATEST)
        assert options.fail_on_data_loss and options.read_committed
        assert options.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")

    def test_kafka_settings_go_to_the_connection_and_are_not_shown(self) -> None:
        options = parsed(**{"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.password": "hush"})
        assert dict(options.connection.settings) == {"sasl.mechanism": "PLAIN", "sasl.password": "hush"}
        assert "hush" not in repr(options)

    @pytest.mark.parametrize(
        ("given_options", "says"),
        [
            (without("subscribe"), "exactly one of subscribe, subscribePattern and assign.*none is set"),
            (without(subscribePattern="o.*"), "subscribe and subscribePattern are set"),
            (without("kafka.bootstrap.servers"), "kafka.bootstrap.servers is missing"),
            (without(startingOffset="earliest"), "no option 'startingOffset'; did you mean 'startingOffsets'"),
            (without(maxoffsetpertrigger="1"), "did you mean 'maxOffsetsPerTrigger'"),
            (without(startingOffsets="earlyest"), "'earlyest' is not known; use earliest, latest"),
            (without(startingOffsets='{"orders": {"0": -3}}'), "orders-0 has -3; it must be -2"),
            (without(startingOffsets='{"orders": [0]}'), "'orders' must have an object of partitions"),
            (without(startingOffsets='{"orders": {"zero": 1}}'), "'zero' of topic 'orders' is not a partition number"),
            (without(startingOffsets='{"orders": '), "startingOffsets is not JSON"),
            (without(startingTimestamp="yesterday"), "'yesterday' is not a time; give milliseconds"),
            (without(maxOffsetsPerTrigger="0"), "is not a whole number of at least 1"),
            (without(maxBytesPerTrigger="many"), "'many' is not a size; write it as"),
            (without(maxTriggerDelay="soon"), "'soon' is not a duration"),
            (without(minOffsetsPerTrigger="9", maxOffsetsPerTrigger="8"), "is larger than maxOffsetsPerTrigger"),
            (without(failOnDataLoss="maybe"), "is neither true nor false"),
            (without(columns="value,ofset"), "no column 'ofset'; did you mean 'offset'"),
            (without(columns="value,value"), "has a column twice"),
            (without(columns="value", includeHeaders="true"), "columns does not have headers"),
            (without(**{"kafka.isolation.level": "read_comitted"}), "did you mean read_committed"),
            (without(**{"kafka.auto.offset.reset": "earliest"}), "set startingOffsets to earliest or latest"),
            (without(**{"kafka.enable.auto.commit": "true"}), "set groupId"),
            (without(**{"kafka.value.deserializer": "x"}), "valueFormat"),
            (without(**{"kafka.key.deserializer": "x"}), "keyFormat"),
            (without(**{"kafka.interceptor.classes": "x"}), "is not supported"),
            (without(path="orders"), r"load\(\) takes no path"),
            (without(groupId="a", **{"kafka.group.id": "b"}), "groupId and kafka.group.id differ"),
            (without(subscribe=" , "), "subscribe is empty"),
            (without("subscribe", subscribePattern="("), "is not a regular expression"),
            (without("subscribe", assign='{"orders": 0}'), "'orders' must have a list of partition numbers"),
            (without("subscribe", assign="orders"), "assign is not JSON"),
            (without(valueFormat="jsn"), "did you mean json"),
            (without(valueFormat="avro"), "valueFormat avro needs a schema; set schema.registry.url or valueSchema"),
            (without(valueSchema="{}"), "valueSchema has no effect without valueFormat"),
            (without(badRecords="fail"), "set valueFormat or keyFormat"),
            (
                without(valueFormat="json", valueSchema="{}", badRecords="deadLetterTopic"),
                "the option deadLetterTopic is missing",
            ),
        ],
    )
    def test_mistakes_are_told_with_what_would_be_right(self, given_options: dict[str, str], says: str) -> None:
        with pytest.raises(OptionError, match=says):
            parse_read_options(given_options)

    @pytest.mark.parametrize(
        ("more", "position"),
        [
            ({"startingOffsets": "EARLIEST"}, AllPartitions(EARLIEST)),
            ({"startingOffsets": "committed", "groupId": "g"}, Committed()),
            ({"startingOffsets": '{"orders": {"0": 5, "1": -1}}'}, PerPartition({P0: 5, P1: LATEST})),
            ({"startingOffsets": "earliest", "startingTimestamp": "7"}, AtTime(7)),
            ({"startingTimestamp": "7", "startingOffsetsByTimestamp": '{"orders": {"0": 8}}'}, AtTime(7)),
            ({"startingOffsets": "latest", "startingOffsetsByTimestamp": '{"orders": {"0": 8}}'}, AtTime({P0: 8})),
        ],
    )
    def test_one_starting_option_goes_before_another(self, more: dict[str, str], position: object) -> None:
        assert parsed(**more).starting == position

    @pytest.mark.parametrize(
        ("more", "says"),
        [
            ({"startingOffsets": "latest"}, "cannot start at latest"),
            ({"startingOffsets": '{"orders": {"0": -1}}'}, "cannot start at latest"),
            ({"endingOffsets": "earliest"}, "cannot end at earliest"),
            ({"startingOffsets": '{"orders": {"0": 9}}', "endingOffsets": '{"orders": {"0": 8}}'}, "ends at 8"),
            ({"startingOffsets": '{"orders": {"0": 9}}', "endingOffsets": '{"orders": {"1": 8}}'}, "same partitions"),
            ({"startingTimestamp": "9", "endingTimestamp": "8"}, "is before startingTimestamp"),
        ],
    )
    def test_options_of_streams_are_refused_in_a_batch(self, more: dict[str, str], says: str) -> None:
        with pytest.raises(OptionError, match=says):
            parsed(**more).for_batch()

    def test_options_of_batches_are_refused_in_a_stream(self) -> None:
        with pytest.raises(OptionError, match=r"endingOffsets is for spark\.read"):
            parsed(endingOffsets="latest").for_stream()

    def test_options_without_effect_are_told_of(self, caplog: pytest.LogCaptureFixture) -> None:
        parsed(maxOffsetsPerTrigger="5", groupIdPrefix="p").for_batch()
        assert "maxOffsetsPerTrigger has no effect in a batch" in caplog.text
        assert "groupIdPrefix has no effect" in caplog.text

    def test_sizes_and_durations_as_spark_writes_them(self) -> None:
        options = parsed(maxBytesPerTrigger="64m", maxTriggerDelay="2h")
        assert (options.max_bytes, options.max_delay_s) == (64 << 20, 7200)

    def test_every_option_is_in_the_docs_as_the_table_has_it(self) -> None:
        page = REPOSITORY.joinpath("docs", "spark.md").read_text()
        rows = dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", page, re.MULTILINE))
        for option in READ_OPTIONS.options:
            assert rows.get(option.name) == f"{option.kind} | {option.default or '—'} | {option.use} | {option.help}"


class TestOffsets:
    def test_offsets_survive_a_checkpoint_and_are_the_same_text(self) -> None:
        offset = StreamOffset({P1: 2, P0: 1}, {"orders": "id"}, {P1: 0}, "g")
        document = json.loads(json.dumps(offset.to_json()))
        assert StreamOffset.from_json(document) == offset
        assert json.dumps(StreamOffset.from_json(document).to_json()) == json.dumps(document)
        assert positions_of(document) == {("orders", 0): 1, ("orders", 1): 2}

    def test_offsets_of_spark_sql_kafka_can_be_read(self) -> None:
        assert StreamOffset.from_json({"orders": {"0": 1}}) == StreamOffset({P0: 1})

    @pytest.mark.parametrize("document", [{"index": 3}, {"a": {"b": "c"}}, {"a": {"x": 1}}])
    def test_offsets_of_something_else_are_told_of(self, document: dict[str, Any]) -> None:
        with pytest.raises(CheckpointError, match="Set another checkpointLocation"):
            StreamOffset.from_json(document)


sizes = st.dictionaries(st.integers(0, 20).map(lambda n: TopicPartition("t", n)), st.integers(0, 10**6), min_size=1)


class TestAdmission:
    def test_limit_is_shared_in_proportion_and_no_one_starves(self) -> None:
        starts = {P0: 100, P1: 0, P2: 0}
        ends = {P0: 1100, P1: 9000, P2: 1}
        assert at_most_offsets(starts, ends, 100) == {P0: 100 + 9, P1: 89, P2: 1}

    @given(sizes, st.integers(1, 10**6))
    def test_never_more_than_the_limit_but_for_one_each(self, sizes: dict[TopicPartition, int], limit: int) -> None:
        starts = dict.fromkeys(sizes, 0)
        chosen = at_most_offsets(starts, sizes, limit)
        assert all(0 <= chosen[each] <= sizes[each] for each in sizes)
        assert all(chosen[each] > 0 for each in pending_offsets(starts, sizes))
        assert sum(chosen.values()) <= limit + len(sizes)

    @given(sizes, st.integers(1, 10**9), st.floats(1, 10**6))
    def test_bytes_are_counted_by_what_an_offset_holds(
        self, sizes: dict[TopicPartition, int], limit: int, rate: float
    ) -> None:
        starts = dict.fromkeys(sizes, 0)
        chosen = at_most_bytes(starts, sizes, limit, dict.fromkeys(sizes, rate))
        assert all(chosen[each] > 0 for each in pending_offsets(starts, sizes))
        assert sum(chosen.values()) * rate <= limit + rate * len(sizes) + 1


class TestRanges:
    def test_one_per_partition_and_empty_ones_are_dropped(self) -> None:
        ranges = [Range("t", 0, 0, 10), Range("t", 1, 5, 5)]
        assert split_ranges(ranges) == ranges[:1]

    def test_large_ones_are_split_for_min_partitions(self) -> None:
        found = split_ranges([Range("t", 0, 0, 900), Range("t", 1, 0, 100), Range("t", 2, 7, 8)], min_partitions=12)
        assert [each.size for each in found if each.partition == 2] == [1]
        assert 11 <= len(found) <= 13

    @given(sizes, st.integers(1, 50), st.one_of(st.none(), st.integers(10**4, 10**6)))
    def test_nothing_is_left_out_or_read_twice(
        self, sizes: dict[TopicPartition, int], least: int, most: int | None
    ) -> None:
        whole = [Range(each.topic, each.partition, 3, 3 + size) for each, size in sizes.items()]
        found = split_ranges(whole, min_partitions=least, max_records=most)
        assert all(each.size > 0 and (most is None or each.size <= most) for each in found)
        for each in whole:
            parts = sorted((part.start, part.stop) for part in found if part.partition == each.partition)
            assert all(before[1] == after[0] for before, after in pairwise(parts))
            assert not each.size or (parts[0][0], parts[-1][1]) == (each.start, each.stop)


class TestLoss:
    """What counts as loss and what does not; `failOnDataLoss` only decides what is done about it."""

    before = StreamOffset({P0: 10, P1: 20}, {"orders": "a"})
    now = Topics(frozenset({P0, P1}), {"orders": "a"})

    def found(self, before: StreamOffset, now: Topics, low: dict[Any, int], high: dict[Any, int]) -> tuple[Any, str]:
        made = resume(before, now, low, high, lambda topic: topic == "orders")
        return made, "; ".join(made.losses.found)

    def test_offsets_that_are_there_stay(self) -> None:
        made, said = self.found(self.before, self.now, {P0: 0, P1: 20}, {P0: 10, P1: 90})
        assert (made.starts, said) == ({P0: 10, P1: 20}, "")

    def test_retention_was_faster(self) -> None:
        made, said = self.found(self.before, self.now, {P0: 15, P1: 0}, {P0: 30, P1: 90})
        assert made.starts == {P0: 15, P1: 20} and made.begin == {P0: 15}
        assert "orders-0 starts at 15 now; the offsets 10 to 14 are gone" in said
        with pytest.raises(DataLossError, match="failOnDataLoss=false"):
            made.losses.settle(fail=True, streaming=True)

    def test_a_log_that_ends_early_is_a_loss(self) -> None:
        made, said = self.found(self.before, self.now, {P0: 0, P1: 0}, {P0: 4, P1: 90})
        assert made.starts[P0] == 4 and "orders-0 ends at 4 now" in said

    def test_new_partition_is_read_from_its_beginning(self) -> None:
        now = Topics(frozenset({P0, P1, P2}), {"orders": "a"})
        made, said = self.found(self.before, now, {P0: 0, P1: 0, P2: 0}, {P0: 10, P1: 20, P2: 5})
        assert (made.begin, said) == ({P2: 0}, "")
        _, said = self.found(self.before, now, {P0: 0, P1: 0, P2: 3}, {P0: 10, P1: 20, P2: 5})
        assert "orders-2 is new, but starts at 3" in said

    def test_new_topic_may_begin_anywhere(self) -> None:
        other = TopicPartition("more", 0)
        now = Topics(frozenset({P0, P1, other}), {"orders": "a", "more": "b"})
        made, said = self.found(self.before, now, {P0: 0, P1: 0, other: 77}, {P0: 10, P1: 20, other: 99})
        assert (made.begin, said) == ({other: 77}, "")

    def test_a_recreated_topic_is_a_loss(self) -> None:
        now = Topics(self.now.partitions, {"orders": "b"})
        made, said = self.found(self.before, now, {P0: 0, P1: 0}, {P0: 50, P1: 50})
        assert made.starts == {P0: 0, P1: 0} and "deleted and recreated" in said

    def test_a_deleted_partition_is_a_loss(self) -> None:
        _, said = self.found(self.before, Topics(frozenset({P0}), {"orders": "a"}), {P0: 0}, {P0: 10})
        assert said == "orders-1 was deleted"

    def test_topic_not_asked_for_any_more_is_no_loss(self) -> None:
        before = StreamOffset({TopicPartition("other", 0): 5, P0: 10, P1: 20})
        made, said = self.found(before, self.now, {P0: 0, P1: 0}, {P0: 10, P1: 20})
        assert (made.starts, said) == ({P0: 10, P1: 20}, "")
