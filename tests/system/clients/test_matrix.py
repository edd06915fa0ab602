"""Every client reads what every client wrote, byte for byte: all codecs, all acks, every shape of record."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.system.clients import corpus
from tests.system.clients.client_program import ClientProgram
from tests.system.clients.conftest import GetClient
from tools import install_test_clients

# The second of two partitions, so that a partition chosen by the client itself would be noticed.
PARTITION = 1

NAMES = list(install_test_clients.CLIENTS)

Written = Callable[[str], list[corpus.WireRecord]]


def topic_of(writer: str) -> str:
    return f"matrix-{writer}"


@pytest.fixture(scope="session")
def written(bootstrap: str, get_client: GetClient) -> Written:
    """What the named client wrote to its topic, written on first request."""
    done: dict[str, list[corpus.WireRecord]] = {}
    failed: dict[str, Exception] = {}

    def write_all(name: str) -> list[corpus.WireRecord]:
        writer = get_client(name)
        maker = get_client("confluent-kafka") if "create_topic" in writer.lacks else writer
        maker.ask("create_topic", bootstrap, topic=topic_of(name), partitions=2, config={})
        everything: list[corpus.WireRecord] = []
        for number, (codec, acks) in enumerate(corpus.cases(writer.codecs)):
            records = corpus.build(codec, acks, number, PARTITION, writer.lacks)
            results = writer.produce(bootstrap, topic_of(name), records, codec=codec, acks=acks)
            for index, result in enumerate(results):
                assert "error" not in result, f"{codec}, acks={acks}, record {index}: {result}"
                if acks != 0 and "offsets" not in writer.lacks:
                    assert result["offset"] == len(everything) + index
            everything += records
        return everything

    def write(name: str) -> list[corpus.WireRecord]:
        if name in failed:
            pytest.fail(f"{name} could not write: {failed[name]}", pytrace=False)
        if name not in done:
            try:
                done[name] = write_all(name)
            except Exception as error:
                failed[name] = error
                raise
        return done[name]

    return write


@pytest.mark.parametrize("name", NAMES)
def test_client_has_every_feature(name: str, get_client: GetClient) -> None:
    """Shows, as skips, what the matrix leaves out because the client cannot write it."""
    client = get_client(name)
    reasons = [f"no {codec}" for codec in corpus.CODECS if codec not in client.codecs]
    reasons += client.lacks.values()
    if reasons:
        pytest.skip(f"{client.description['client']} lacks: {'; '.join(reasons)}")


@pytest.mark.parametrize("writer", NAMES)
def test_client_writes_every_shape_of_record(writer: str, written: Written) -> None:
    assert written(writer)


@pytest.mark.parametrize("reader", NAMES)
@pytest.mark.parametrize("writer", NAMES)
def test_client_reads_what_another_wrote(
    reader: str, writer: str, bootstrap: str, written: Written, get_client: GetClient
) -> None:
    reading: ClientProgram = get_client(reader)
    expected = written(writer)
    read = reading.consume(bootstrap, topic_of(writer), PARTITION, len(expected))
    corpus.assert_same(read, expected)
