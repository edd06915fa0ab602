"""`millstream serve` and the gateway beside it: one does not harm the other, and both end together."""

import json
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import millstream
from millstream.cli import gateway_process
from millstream.cli.gateway_process import DEFAULT_HTTP, HttpOptions, named_limits, open_gateway_process
from millstream.cli.serve import log_to_stderr
from millstream.gateway.http.configuration import GatewayError, Limits, parse_address
from millstream.testing.node_process import free_port_range, free_ports
from tests.repository import REPOSITORY
from tests.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.timeout(300)


class Served:
    """A process that has said it is ready."""

    def __init__(self, process: "subprocess.Popen[bytes]", log_file: Path) -> None:
        self.process = process
        self._log_file = log_file
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], TIMEOUT_SECONDS)
        assert readable, self.log
        self.line = process.stdout.readline().decode()
        self.addresses = dict(word.split("=") for word in self.line.split()[1:] if "=" in word)

    @property
    def log(self) -> str:
        return self._log_file.read_text()

    def logged(self, pattern: str, times: int = 1) -> list[str]:
        """Waits until the log has it so often."""
        found: list[str] = eventually(lambda: re.findall(pattern, self.log), lambda found: len(found) >= times)
        return found

    def gateway_pids(self, times: int = 1) -> list[int]:
        return [int(pid) for pid in self.logged(r"gateway_started pid=(\d+)", times)]

    def get(self, path: str, timeout: float = TIMEOUT_SECONDS) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://{self.addresses['http']}{path}", timeout=timeout) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def console_of(self, cluster: str) -> int:
        """The status of the console's first page for a cluster."""
        try:
            url = f"http://{self.addresses['http']}/console/clusters/{cluster}/"
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def publish(self) -> int:
        with millstream.connect(self.addresses["kafka"]) as client:
            return client.publish("t", "x").offset


def eventually(look: Callable[[], Any], good: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not good(seen := look()):
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)
    return seen


def is_alive(pid: int) -> bool:
    """A process whose parent was killed may stay as a zombie where no one collects it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def serving(directory: Path, *words: object) -> Iterator[Served]:
    log_file = directory / "serve.log"
    command = [sys.executable, "-m", "millstream", "serve", "--listen", "127.0.0.1:0", *map(str, words)]
    with open(log_file, "wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=directory)
    try:
        yield Served(process, log_file)
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_the_gateway_dies_hangs_and_ends_and_the_broker_does_not_care(tmp_path: Path) -> None:
    with serving(tmp_path, "--http", "127.0.0.1:0") as served:
        assert re.fullmatch(r"ready kafka=127\.0\.0\.1:\d+ http=127\.0\.0\.1:\d+\n", served.line)
        # The socket is open before the gateway is: a request that comes now waits for it.
        assert served.get("/livez") == (200, {"status": "live"})
        assert served.get("/readyz") == (200, {"status": "ready"})
        (first,) = served.gateway_pids()
        assert os.getpriority(os.PRIO_PROCESS, first) > os.getpriority(os.PRIO_PROCESS, served.process.pid)

        os.kill(first, signal.SIGKILL)
        assert served.get("/livez")[0] == 200, "the next one responds"
        served.logged(r"WARNING millstream\.supervisor gateway_ended pid=\d+ signal=9 lived_s=\S+ again_in_s=0\.2")
        second = served.gateway_pids(2)[-1]
        assert served.publish() == 0

        os.kill(second, signal.SIGSTOP)
        assert served.publish() == 1, "a gateway that hangs is nothing to the broker"
        served.process.terminate()
        assert served.process.wait(TIMEOUT_SECONDS) == 0
        assert not is_alive(second)
        assert "gateway_killed" in served.log
        lines = served.log.splitlines()
        assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+ [A-Z]+ \S+ ", line) for line in lines), served.log


def test_no_gateway_outlives_a_broker_that_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path, "--http", "127.0.0.1:0") as served:
        address = parse_address(served.addresses["http"])
        assert served.get("/livez")[0] == 200
        (gateway,) = served.gateway_pids()
        served.process.kill()
        served.process.wait()
        eventually(lambda: is_alive(gateway), lambda alive: not alive)
        socket.create_server(address).close()


def test_ctrl_c_in_the_terminal_ends_both_in_order(tmp_path: Path) -> None:
    with serving(tmp_path, "--http", "127.0.0.1:0", "--cluster", "east=127.0.0.1:1") as served:
        assert served.get("/readyz")[0] == 200
        assert [served.console_of(each) for each in ("main", "east", "west")] == [200, 200, 404]
        (gateway,) = served.gateway_pids()
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(TIMEOUT_SECONDS) == 0
        assert not is_alive(gateway)
        assert "gateway_ended" not in served.log and "ERROR" not in served.log


def test_a_gateway_that_cannot_live_is_not_started_without_end(tmp_path: Path) -> None:
    """What makes it fail here is a topic for schemas that will not do."""
    with serving(tmp_path, "--no-http") as served, millstream.connect(served.addresses["kafka"]) as client:
        assert served.line == f"ready kafka={served.addresses['kafka']}\n"
        client.create_topic("_schemas", 2)
    with serving(tmp_path, "--http", "127.0.0.1:0") as served:
        served.logged(r"gateway_ended pid=\d+ exit_code=1 lived_s=\S+ again_in_s=0\.2")
        served.logged(r"gateway_ended pid=\d+ exit_code=1 lived_s=\S+ again_in_s=0\.4")
        assert "has 2 partitions" in served.log
        assert served.publish() == 0
        served.process.terminate()
        assert served.process.wait(TIMEOUT_SECONDS) == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--http", "0.0.0.0:0"], "--insecure"),
        (["--http", "nowhere"], "HOST:PORT"),
        (["--http", "127.0.0.1:0", "--no-http"], "exclude each other"),
        (["--no-http", "--insecure"], "remove --no-http"),
        (["--http", "127.0.0.1:0", "--auth-file", "missing"], "missing"),
        (["--http", "127.0.0.1:0", "--tls-cert", "missing"], "--tls-key"),
        (["--http", "127.0.0.1:0", "--tls-cert", "missing", "--tls-key", "missing"], "PEM"),
        (["--http", "127.0.0.1:0", "--cluster", "east"], "NAME=HOST:PORT"),
        (["--no-http", "--cluster", "east=127.0.0.1:1"], "remove --no-http"),
        (["--http", "0", "--set", "process.roles=controller", "--set", "node.id=1"], "controller"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_told_before_anything_is_started(tmp_path: Path, words: list[str], complaint: str) -> None:
    command = [sys.executable, "-m", "millstream", "serve", "--listen", "127.0.0.1:0", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert complaint in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_cluster_has_one_gateway(tmp_path: Path) -> None:
    port = free_port_range(2)  # a broker's and a controller's
    command = [sys.executable, "-m", "millstream", "cluster", "start", "--nodes", "1", "--port", str(port)]
    further = ["--cluster", "east=127.0.0.1:1", "--cluster-name", "here"]
    log_file = tmp_path / "start.log"
    with open(log_file, "wb") as log:
        process = subprocess.Popen(
            [*command, "--dir", str(tmp_path / "c"), "--http", "127.0.0.1:0", *further],
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        served = Served(process, log_file)
        assert served.get("/readyz") == (200, {"status": "ready"})
        assert "gateway_ready" in (tmp_path / "c" / "gateway.log").read_text()
        assert [served.console_of(each) for each in ("here", "east", "main")] == [200, 200, 404]
        address = parse_address(served.addresses["http"])
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0
        socket.create_server(address).close()
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_no_one_can_write_lines_into_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = "2026-01-01 00:00:00,000 INFO millstream all_is_well"
    monkeypatch.setattr(logging, "root", logging.RootLogger(logging.WARNING))
    log_to_stderr()
    logging.root.warning("consumer_expired group=%s", f"a\n{forged}\r\x1b[2J\u2028\u202e")
    try:
        raise ValueError(f"no\n{forged}")
    except ValueError:
        logging.root.exception("failed")
    first, *others = capsys.readouterr().err.splitlines()
    assert first.endswith(rf"WARNING root consumer_expired group=a\n{forged}\r\x1b[2J\u2028\u202e")
    assert others[0].endswith("ERROR root failed") and others[-1] == f"  {forged}"
    assert all(line.startswith("  ") for line in others[1:])


# Where HTTP is served, without processes


def test_the_default_is_quiet_about_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gateway_process, "_PACKAGES", ("no_such_package",))
    with caplog.at_level(logging.INFO):
        assert open_gateway_process(HttpOptions(), by_default=True) is None
    assert "pip install 'millstream[gateway]'" in caplog.text
    with pytest.raises(GatewayError, match="no_such_package"):
        open_gateway_process(HttpOptions("127.0.0.1:0"), by_default=True)
    with pytest.raises(GatewayError, match="no_such_package"):
        open_gateway_process(HttpOptions(insecure=True), by_default=True)


def test_all_of_the_extra_is_looked_for() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    named = {re.split(r"\W*[<>=\[]", each)[0] for each in project["project"]["optional-dependencies"]["gateway"]}
    modules = {"confluent-kafka": "confluent_kafka", "grpcio-tools": "grpc_tools", "common-expression-language": "cel"}
    of_google = {"protobuf", "googleapis-common-protos"}  # parts of one namespace; grpcio-tools needs them too
    assert {modules.get(name, name) for name in named - of_google} == set(gateway_process._PACKAGES)


def test_a_default_port_that_is_taken(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        address = f"127.0.0.1:{port}"
        monkeypatch.setattr(gateway_process, "DEFAULT_HTTP", address)
        front = open_gateway_process(HttpOptions(), by_default=True)
        assert front is not None and front.address != address
        front.stop()
        assert f"http_elsewhere address={front.address}" in caplog.text
        with pytest.raises(GatewayError, match="choose another address"):
            open_gateway_process(HttpOptions(address), by_default=True)
    again = open_gateway_process(HttpOptions(), by_default=True)
    assert again is not None and again.address == address
    again.stop()


def test_no_gateway_is_opened_without_its_option() -> None:
    assert open_gateway_process(HttpOptions(), by_default=False) is None
    assert open_gateway_process(HttpOptions(off=True), by_default=True) is None
    with pytest.raises(GatewayError, match="--http HOST:PORT"):
        open_gateway_process(HttpOptions(auth_file="people"), by_default=False)


def test_limits_are_looked_at_before_anything_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_HTTP_LIMITS", "max_streams=5 max_consumers=7")
    assert named_limits(["max_streams=6"]) == Limits(max_streams=6, max_consumers=7)
    monkeypatch.setenv("MILLSTREAM_HTTP_LIMITS", "max_streams=5 max_consumers=few")
    with pytest.raises(GatewayError, match=r"^\$MILLSTREAM_HTTP_LIMITS max_consumers=few: give an integer"):
        open_gateway_process(HttpOptions("127.0.0.1:0"), by_default=True)


def test_the_url_can_be_opened_on_this_machine() -> None:
    front = open_gateway_process(HttpOptions("0.0.0.0:0", insecure=True), by_default=True)
    assert front is not None
    assert front.url == f"http://localhost:{front.address.rpartition(':')[2]}"
    front.stop()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8081", ("127.0.0.1", 8081)),
        (":0", ("127.0.0.1", 0)),
        ("[::1]:5", ("::1", 5)),
        ("a.b:1", ("a.b", 1)),
        (DEFAULT_HTTP, ("127.0.0.1", 8081)),
    ],
)
def test_http_addresses_are_parsed(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "host:x", "host:70000", "::1:5", "host:-1"])
def test_a_wrong_http_address_is_refused(text: str) -> None:
    with pytest.raises(GatewayError, match="HOST:PORT"):
        parse_address(text)
