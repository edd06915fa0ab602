"""Dead letters as they lie in their topic, without a cluster."""

import pytest

from millstream.console.messages.reading import FoundRecord
from millstream.console.queues.dead_letters import _dead_letter


def letter(partition: bytes, offset: bytes = b"7") -> FoundRecord:
    headers = {b"topic": b"orders", b"partition": partition, b"offset": offset}
    named = tuple((f"__dlq.errors.{name.decode()}", value) for name, value in headers.items())
    return FoundRecord(0, 1, 0, None, b"", named)


def test_a_dead_letter_names_its_source() -> None:
    found = _dead_letter(letter(b"3"))
    assert found is not None and (found.topic, found.partition, found.offset) == ("orders", 3, 7)


@pytest.mark.parametrize("number", [b"", b"x", b"-1", "²".encode(), "٣".encode(), b"9" * 5000, b"\xff"])
def test_others_in_the_topic_are_no_letters(number: bytes) -> None:
    """A client that may write there could otherwise keep all letters from being sent back."""
    assert _dead_letter(letter(number)) is None and _dead_letter(letter(b"3", number)) is None
