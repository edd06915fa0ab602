"""`millstream serve` as a process, and the short way through its options."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import millstream
from millstream.cli.serve import ServeOptions, listen_address, parse
from millstream.testing import EmbeddedBroker
from tests.integration.cli.conftest import Run
from tests.waiting import TIMEOUT_SECONDS


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ([], ServeOptions()),
        (["--listen", "a:1", "--data-dir=d"], ServeOptions(listen="a:1", data_dir="d")),
        (["--set", "a=1", "--set=b=2"], ServeOptions(settings=["a=1", "b=2"])),
        (["--config", "f", "--exit-with-stdin"], ServeOptions(config="f", exit_with_stdin=True)),
        (["--help"], None),
        (["-h"], None),
        (["--listen"], None),
        (["stray"], None),
        (["--lisen", "a:1"], None),
    ],
)
def test_serve_parses_its_options(arguments: list[str], options: ServeOptions | None) -> None:
    assert parse(arguments) == options


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:1", "0.0.0.0:1"),
        ("9093", "127.0.0.1:9093"),
        (":9093", "127.0.0.1:9093"),
        ("host", "host:9092"),
        ("[::1]", "[::1]:9092"),
        ("[::1]:5", "[::1]:5"),
    ],
)
def test_serve_parses_the_listen_address(text: str, address: str) -> None:
    assert listen_address(text) == address


def serve(*arguments: object, cwd: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "millstream", "serve", "--no-http", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )


def only_complaint(err: str) -> str:
    """The one line that is for people; what else is on stderr is the log, and nothing there is worse than a warning."""
    lines = err.splitlines()
    assert lines[-1].startswith("millstream: ")
    assert all(" INFO " in line or " WARNING " in line for line in lines[:-1]), err
    return lines[-1]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_serve_says_ready_and_stops_at_a_signal(tmp_path: Path, how: signal.Signals) -> None:
    with serve("--listen", "127.0.0.1:0", cwd=tmp_path) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready kafka=127.0.0.1:")
            with millstream.connect(line.strip().partition("=")[2]) as client:
                client.create_topic("t", 1)
                assert client.publish("t", "x").offset == 0
        finally:
            process.send_signal(how)
            out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 0, err
    assert out == "", "nothing but the ready line on stdout"
    assert (tmp_path / "millstream-data" / "t-0").is_dir(), "the default data directory is beside us"


def test_a_signal_right_after_ready_is_heard(tmp_path: Path) -> None:
    for _ in range(3):
        with serve("--listen", "127.0.0.1:0", cwd=tmp_path) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline().startswith("ready")
                process.terminate()
                _, err = process.communicate(timeout=TIMEOUT_SECONDS)
            finally:
                process.kill()
        assert process.returncode == 0, err


def test_a_server_properties_file_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text(
        f"process.roles=broker,controller\nnode.id=7\ncontroller.quorum.bootstrap.servers=localhost:9093\n"
        f"listeners=PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0\ncontroller.listener.names=CONTROLLER\n"
        f"log.dirs={tmp_path}/elsewhere\nnum.partitions=1\nno.such.setting=1\n"
    )
    with serve("--config", "server.properties", "--set", "num.partitions=3", cwd=tmp_path) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready kafka="), process.communicate(timeout=TIMEOUT_SECONDS)
            with millstream.connect(line.strip().partition("=")[2]) as client:
                client.create_topic("t")
                topic = client.describe_topic("t")
        finally:
            process.terminate()
            _, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert [part.leader for part in topic.partitions] == [7, 7, 7]
    assert (tmp_path / "elsewhere" / "t-2").is_dir()
    assert "server.properties:8: unknown setting no.such.setting" in err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--set", "node.id=abc"], "node.id=abc"),
        (["--set", "nothing"], "name=value"),
        (["--config", "missing.properties"], "missing.properties"),
        (["--listen", "256.0.0.1:0"], "256.0.0.1"),
        (["--listen", "127.0.0.1:notaport"], "notaport"),
        (["--listen", "127.0.0.1:0", "--data-dir", "a-file/data"], "a-file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refuses_to_start_with_one_clear_line(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    (tmp_path / "a-file").write_text("")
    with serve(*arguments, cwd=tmp_path) as process:
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 1
    assert out == ""
    assert complaint in only_complaint(err)


def test_a_port_that_is_taken(tmp_path: Path, millstream_broker: EmbeddedBroker) -> None:
    with serve("--listen", millstream_broker.bootstrap_servers, cwd=tmp_path) as process:
        _, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 1
    assert millstream_broker.bootstrap_servers in only_complaint(err)


def test_a_data_directory_that_is_in_use(
    tmp_path: Path,
    millstream_broker: EmbeddedBroker,
) -> None:
    with serve("--listen", "127.0.0.1:0", "--data-dir", millstream_broker.data_dir, cwd=tmp_path) as process:
        _, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert process.returncode == 1
    assert str(millstream_broker.data_dir) in only_complaint(err)
    # A mark of a clean stop in a directory where a broker writes would make its next start skip recovery.
    assert ".kafka_cleanshutdown" not in os.listdir(millstream_broker.data_dir)


def test_the_long_way_starts_the_same_broker(offline: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    from millstream.cli import app

    outcome = app.run_app(["serve", "--set", "node.id=abc"])
    assert outcome == 1
    assert os.listdir(tmp_path) == []
