"""Regular expressions over the names of topics."""

import pytest

from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.node.coordination.core.expression import TopicPattern
from millstream.node.coordination.core.state_machine import FixedTopics
from millstream.node.metadata.topic_names import INTERNAL_TOPICS


def catalog(*names: str) -> FixedTopics:
    topics = FixedTopics()
    for name in names:
        topics.add(name, 1)
    return topics


def test_whole_names_match_and_internal_topics_too() -> None:
    topics = catalog("orders", "orders-2", "old-orders", *INTERNAL_TOPICS)
    assert TopicPattern("orders.*").matches(topics) == {"orders", "orders-2"}
    assert TopicPattern(".*").matches(topics) == {"orders", "orders-2", "old-orders", *INTERNAL_TOPICS}


def test_each_name_is_matched_once() -> None:
    topics = catalog("a1", "b1")
    pattern = TopicPattern("a.*")
    assert pattern.unknown(topics) == ["a1", "b1"]
    pattern.learn(["a1", "b1"])
    assert pattern.unknown(topics) == []
    assert pattern.matches(topics) == {"a1"}
    topics.add("a2", 1)
    assert pattern.unknown(topics) == ["a2"]
    assert pattern.matches(topics) == {"a1", "a2"}
    topics.remove("a1")
    assert pattern.matches(topics) == {"a2"}


@pytest.mark.parametrize("text", ["(", r"(a)\1", "(.{100}){100}", "(?:a{50}|b{50}){80}", "x" * 8000])
def test_what_is_wrong_or_too_large_is_refused(text: str) -> None:
    with pytest.raises(KafkaError) as caught:
        TopicPattern(text)
    assert caught.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_list_of_many_names_is_not_too_large() -> None:
    names = [f"department-{number}.orders" for number in range(100)]
    assert TopicPattern("|".join(names)).matches(catalog(*names, "department-7")) == set(names)
