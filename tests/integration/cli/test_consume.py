"""`millstream consume`."""

import os
import signal
import subprocess
import sys

import pytest

from millstream.testing import EmbeddedBroker
from tests.integration.cli.conftest import Run
from tests.waiting import TIMEOUT_SECONDS


@pytest.fixture
def numbers(run: Run, millstream_topic: str) -> str:
    """The numbers 0 to 9, one per second from the start of 2026; kept for ever, since retention goes by that time."""
    assert run("topic", "alter", millstream_topic, "--config", "retention.ms=-1").code == 0
    lines = b"".join(
        b'{"key": "k%d", "value": "%d", "timestamp": %d, "headers": {"n": "%d"}}\n'
        % (n, n, 1767225600000 + n * 1000, n)
        for n in range(10)
    )
    assert run("produce", millstream_topic, "--json-lines", stdin=lines).code == 0
    return millstream_topic


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", range(10)),
        ("beginning", range(10)),
        ("7", [7, 8, 9]),
        ("-2", [8, 9]),
        ("@1767225605000", [5, 6, 7, 8, 9]),
        ("2026-01-01T00:00:08+00:00", [8, 9]),
        ("1s", []),
        ("latest", []),
    ],
)
def test_consume_begins_at_the_given_position(run: Run, numbers: str, start: str, expected: list[int]) -> None:
    outcome = run("consume", numbers, "--from", start)
    assert outcome.code == 0
    assert outcome.out == "".join(f"{number}\n" for number in expected)


def test_consume_prints_the_chosen_columns(run: Run, numbers: str) -> None:
    outcome = run("consume", numbers, "--from", 3, "--count", 1, "--keys", "--headers", "--timestamps", "--offsets")
    assert outcome.out == "0:3\t2026-01-01T00:00:03.000+00:00\tk3\tn=3\t3\n"


def test_consume_prints_records_as_json(run: Run, numbers: str) -> None:
    (record,) = run("consume", numbers, "--from", -1, "--json").json_lines()
    assert record == {
        "topic": numbers,
        "partition": 0,
        "offset": 9,
        "timestamp": 1767225609000,
        "key": "k9",
        "value": "9",
        "headers": [["n", "9"]],
    }


def test_consume_prints_records_in_the_given_format(run: Run, numbers: str) -> None:
    outcome = run("consume", numbers, "-o", 1, "-c", 2, "-F", r"%p/%o %k(%K)=%s(%S) %h %T%%\t|")
    assert outcome.out == "0/1 k1(2)=1(1) n=1 1767225601000%\t|0/2 k2(2)=2(1) n=2 1767225602000%\t|"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--from", "99"], 4),
        (["--partition", "3"], 4),
        (["--from", "someday"], 2),
        (["--format", "%x"], 2),
        (["--format", "%s", "--json"], 2),
    ],
)
def test_wrong_options_of_consume_are_refused(run: Run, numbers: str, arguments: list[str], code: int) -> None:
    outcome = run("consume", numbers, *arguments)
    assert (outcome.code, outcome.out) == (code, "")
    assert outcome.err.startswith("millstream: ")


def test_consume_of_a_missing_topic_exits_with_4(run: Run) -> None:
    assert run("consume", "missing").code == 4


def test_ctrl_c_ends_a_follower_cleanly(numbers: str, millstream_broker: EmbeddedBroker) -> None:
    command = [sys.executable, "-m", "millstream", "consume", numbers, "--follow"]
    environment = {**os.environ, "MILLSTREAM_BOOTSTRAP": millstream_broker.bootstrap_servers}
    # A test run in the background of a shell ignores Ctrl-C, and so would its children: hear it again.
    script = ["import os, signal, sys", "signal.signal(2, signal.SIG_DFL)", "os.execv(sys.argv[1], sys.argv[1:])"]
    command = [sys.executable, "-c", "; ".join(script), *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            read = [process.stdout.readline() for _ in range(10)]
            process.send_signal(signal.SIGINT)
            rest, err = process.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            process.kill()
    assert read == [b"%d\n" % number for number in range(10)]
    assert (process.returncode, rest, err) == (130, b"", b"")


def test_a_reader_that_goes_away(numbers: str, millstream_broker: EmbeddedBroker) -> None:
    command = [sys.executable, "-m", "millstream", "consume", numbers, "-b", millstream_broker.bootstrap_servers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        _, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert err == b""
