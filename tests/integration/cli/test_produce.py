"""`millstream produce`."""

from pathlib import Path

import pytest

from tests.integration.cli.conftest import Run


def stored(run: Run, topic: str) -> list[tuple[str | None, str | None]]:
    return [(one.get("key"), one.get("value")) for one in run("consume", topic, "--json").json_lines()]


def test_produce_sends_its_arguments(run: Run, millstream_topic: str) -> None:
    outcome = run("produce", millstream_topic, "one", "two", "--key", "k", "--header", "a=1", "-H", "b=2")
    assert outcome.code == 0
    records = run("consume", millstream_topic, "--json").json_lines()
    assert [(one["key"], one["value"]) for one in records] == [("k", "one"), ("k", "two")]
    assert records[0]["headers"] == [["a", "1"], ["b", "2"]]


def test_produce_sends_lines_of_stdin(run: Run, millstream_topic: str) -> None:
    outcome = run("produce", millstream_topic, "--key-separator", ":", "--json", stdin=b"a:1\nb:2:3\r\n")
    assert (outcome.code, outcome.json()["records"]) == (0, 2)
    assert stored(run, millstream_topic) == [("a", "1"), ("b", "2:3")]


@pytest.mark.parametrize(
    ("codec", "acks"),
    [("none", "0"), ("none", "1"), ("none", "all"), ("gzip", "all"), ("snappy", "1"), ("lz4", "0"), ("zstd", "all")],
)
def test_produce_sends_lines_of_a_file(run: Run, millstream_topic: str, tmp_path: Path, codec: str, acks: str) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_bytes(b"".join(b"line %d\n" % number for number in range(300)))
    assert run("produce", millstream_topic, "--file", lines, "-z", codec, "--acks", acks).code == 0
    outcome = run("consume", millstream_topic, "--follow", "--count", 300, "--idle", 15)
    assert outcome.raw == lines.read_bytes()


def test_produce_sends_whole_files(run: Run, millstream_topic: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n2\n")
    (tmp_path / "b").write_bytes(b"\x00\xff")
    assert run("produce", millstream_topic, "--whole", "-f", tmp_path / "a", "-f", tmp_path / "b").code == 0
    assert run("consume", millstream_topic, "--format", "[%s]").raw == b"[1\n2\n][\x00\xff]"


def test_json_lines_copy_a_topic_without_loss(run: Run, millstream_topic: str) -> None:
    lines = (
        b'{"key": "k", "value": {"deep": [1]}, "headers": {"h": "v"}, "timestamp": 1700000000000}\n'
        b'{"key_base64": "/wA=", "value": null, "headers": [["a", {"base64": "/w=="}], ["a", null]]}\n'
        b'{"value": "text"}\n'
    )
    assert run("topic", "alter", millstream_topic, "-c", "retention.ms=-1").code == 0  # a timestamp above is old
    assert run("produce", millstream_topic, "--json-lines", stdin=lines).code == 0
    first = run("consume", millstream_topic, "--json")
    assert run("topic", "create", f"{millstream_topic}-copy", "-p", 1, "-c", "retention.ms=-1").code == 0
    assert run("produce", f"{millstream_topic}-copy", "--json-lines", stdin=first.raw).code == 0
    copies = run("consume", f"{millstream_topic}-copy", "--json").json_lines()
    assert [{**one, "topic": millstream_topic} for one in copies] == first.json_lines()
    assert (copies[0]["timestamp"], copies[0]["value"]) == (1700000000000, '{"deep": [1]}')
    assert copies[1]["key_base64"] == "/wA="
    assert copies[1]["value"] is None


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "complaint"),
    [
        (["--key-separator", ":"], b"no separator\n", 1, "line 1"),
        (["--json-lines"], b'{"value": "fine"}\nnonsense\n', 1, "line 2"),
        (["--json-lines"], b"[]\n", 1, "line 1"),
        (["--acks", "2"], b"", 2, "--acks"),
        (["-z", "rar"], b"", 2, "--compression"),
        (["--json-lines", "--whole"], b"", 2, "--json-lines"),
        (["--file", "no-such-file"], b"", 4, "no-such-file"),
        (["--header", "novalue"], b"", 2, "NAME=VALUE"),
        (["--partition", "9", "x"], b"", 4, "partition"),
    ],
)
def test_wrong_options_of_produce_are_refused(
    run: Run, millstream_topic: str, arguments: list[str], stdin: bytes, code: int, complaint: str
) -> None:
    outcome = run("produce", millstream_topic, *arguments, stdin=stdin)
    assert (outcome.code, outcome.out) == (code, "")
    assert complaint in outcome.err
