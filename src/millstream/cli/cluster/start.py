"""`millstream cluster start`: runs a local cluster of `millstream serve` processes, and a gateway.

The number of nodes and the ports of the first start are stored in the directory, so that the next start continues with
the same cluster. The nodes and the gateway end with this command, also if it is killed.
"""

import fcntl
import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from millstream.cli import exit_codes
from millstream.cli.gateway_process import (
    HOW_TO_INSTALL,
    GatewayProcess,
    HttpOptions,
    missing_package,
    open_gateway_process,
)
from millstream.cli.serve import log_to_stderr
from millstream.cli.terminal import CommandFailedError, complain, note, print_json
from millstream.common.lazy_dataclass import dataclass
from millstream.config.addresses import parse_protocol_map
from millstream.config.setting import ConfigError
from millstream.gateway.http.configuration import GatewayError
from millstream.testing.embedded_cluster import EmbeddedCluster
from millstream.testing.node_process import NodeProcessError

CHOICE_FILE = "cluster.json"
GATEWAY_LOG = "gateway.log"
LOCK_FILE = ".lock"
DEFAULT_NODES = 3
DEFAULT_PORT = 9092
_MAX_NODES = 9
_POLL_INTERVAL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Choice:
    """The number of nodes and the first port of a cluster."""

    nodes: int
    port: int


class _Stop(Exception):
    """SIGTERM or SIGINT arrived."""


def _replicated(nodes: int) -> dict[str, str]:
    """Defaults of a cluster with several nodes: topics are replicated."""
    replicas = min(3, nodes)
    return {"default.replication.factor": str(replicas), "min.insync.replicas": str(max(1, replicas - 1))}


def run(
    directory: Path,
    nodes: int | None,
    port: int | None,
    settings: dict[str, str],
    http: HttpOptions,
    *,
    as_json: bool,
) -> int:
    """Runs the cluster until SIGTERM or SIGINT; returns the exit code."""
    log_to_stderr("WARNING")
    choice = choose(directory, nodes, port)
    cluster = EmbeddedCluster(
        choice.nodes, {**_replicated(choice.nodes), **settings}, data_dir=directory, first_port=choice.port
    )
    with _locked(directory), _stop_signals():
        _check_ports(choice)
        gateway = _open_gateway(http, _protocol(settings))
        try:
            try:
                note(f"starting {choice.nodes} nodes")
                cluster.start()
            except NodeProcessError as error:
                raise CommandFailedError(_reason(error)) from error
            (directory / CHOICE_FILE).write_text(json.dumps(asdict(choice)) + "\n")
            _announce(cluster, gateway, directory, as_json=as_json)
            if gateway is not None:
                gateway.start(cluster.bootstrap_servers, directory / GATEWAY_LOG)
            return _watch(cluster)
        except _Stop:
            return exit_codes.OK
        finally:
            if gateway is not None:
                gateway.stop()
            _stop(cluster)


def _protocol(settings: dict[str, str]) -> str:
    """The security protocol of the nodes' listener for clients. A map that is not valid is refused by the nodes."""
    try:
        return parse_protocol_map(settings.get("listener.security.protocol.map", "")).get("PLAINTEXT", "PLAINTEXT")
    except ConfigError:
        return "PLAINTEXT"


def _open_gateway(http: HttpOptions, protocol: str) -> GatewayProcess | None:
    try:
        gateway = open_gateway_process(http, by_default=True, protocols=[protocol])
    except GatewayError as error:
        raise CommandFailedError(str(error), exit_codes.USAGE) from error
    if gateway is None and not http.off and missing_package() is not None:
        note(f"no HTTP and no console: install them with {HOW_TO_INSTALL}")
    return gateway


def choose(directory: Path, nodes: int | None, port: int | None) -> Choice:
    """The cluster in the directory, which the options must not contradict, or a new one."""
    file = directory / CHOICE_FILE
    if not file.exists():
        wanted = Choice(DEFAULT_NODES if nodes is None else nodes, DEFAULT_PORT if port is None else port)
        if not 1 <= wanted.nodes <= _MAX_NODES:
            raise CommandFailedError(f"--nodes {wanted.nodes}: write a number from 1 to {_MAX_NODES}", exit_codes.USAGE)
        if not 1 <= wanted.port <= 65536 - 2 * wanted.nodes:
            raise CommandFailedError(
                f"--port {wanted.port}: the cluster needs {2 * wanted.nodes} ports from this one on", exit_codes.USAGE
            )
        return wanted
    try:
        begun = Choice(**json.loads(file.read_text()))
    except (ValueError, TypeError) as error:
        raise CommandFailedError(f"{file} cannot be read ({error}): remove it, and give --nodes as before") from error
    if nodes not in (None, begun.nodes):
        raise CommandFailedError(
            f"{directory} has a cluster of {begun.nodes} nodes: remove --nodes, or use another --dir",
            exit_codes.EXISTS,
        )
    # Ports may change: every node reads the addresses of the others from its file.
    return begun if port is None else Choice(begun.nodes, port)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Locks the directory: a second cluster there would overwrite the files of the first."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / LOCK_FILE).open("w")
    except OSError as error:
        raise CommandFailedError(
            f"--dir {directory} cannot be used ({error.strerror}): use another directory"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise CommandFailedError(
                f"a cluster runs in {directory} already: stop it first, or use another --dir", exit_codes.EXISTS
            ) from None
        yield


def _check_ports(choice: Choice) -> None:
    for port in range(choice.port, choice.port + 2 * choice.nodes):
        try:
            # Bound as by a listener: otherwise a port that was just closed counts as taken.
            with socket.create_server(("127.0.0.1", port)):
                pass
        except OSError as error:
            reason = str(error.strerror).partition(" (")[0]
            raise CommandFailedError(
                f"port {port} cannot be used ({reason}): stop the process that has it, or give --port with "
                f"{2 * choice.nodes} free ports from it on"
            ) from error


@contextmanager
def _stop_signals() -> Iterator[None]:
    """SIGTERM and Ctrl-C stop the cluster. Only the first counts, so that the stop is not interrupted."""
    is_stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_stopping
        if not is_stopping:
            is_stopping = True
            raise _Stop

    before = {each: signal.signal(each, stop) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _announce(cluster: EmbeddedCluster, gateway: GatewayProcess | None, directory: Path, *, as_json: bool) -> None:
    bootstrap = cluster.bootstrap_servers
    http = None if gateway is None else gateway.address
    if as_json:
        nodes = [
            {
                "id": number,
                "address": cluster.address(number),
                "pid": cluster.pid(number),
                "log": str(cluster.log_file(number)),
            }
            for number in cluster.nodes
        ]
        print_json({"bootstrap": bootstrap, "http": http, "nodes": nodes})
    else:
        print(f"ready kafka={bootstrap}" + ("" if http is None else f" http={http}"), flush=True)
    first = cluster.address(cluster.nodes[0])
    option = "" if first.endswith(":9092") else f" -b {first}"
    console = "" if gateway is None else f"  open {gateway.url}/console in a browser\n"
    note(
        f"\n{len(cluster.nodes)} nodes are running. Try, in another terminal:\n"
        f"  millstream cluster status{option}\n"
        f"  millstream topic create orders --partitions 6 --replication {min(3, len(cluster.brokers))}{option}\n"
        f"  kill -9 {cluster.pid(cluster.nodes[0])}    # node {cluster.nodes[0]}: the others keep running\n"
        f"{console}"
        f"Each has its server.properties, data and node.log under {directory}.\n"
        "Ctrl-C stops them all; the data stays, and the same command continues with it."
    )


def _watch(cluster: EmbeddedCluster) -> int:
    """Reports nodes that end; returns when none is left."""
    living = set(cluster.nodes)
    while living:
        time.sleep(_POLL_INTERVAL_SECONDS)
        for number in sorted(living):
            if not cluster.running(number):
                living.discard(number)
                left = f"{len(living)} still run" if living else "none is left"
                log = cluster.log_file(number)
                complain(
                    f"node {number} ended ({_ending(cluster.exit_code(number))}), {left}; its log is {log}; "
                    f"`millstream serve --no-http --config {log.with_name('server.properties')}` starts it again"
                )
    return exit_codes.FAILED


def _reason(error: NodeProcessError) -> str:
    """The last line of the log of a node that refused to start, which has the reason; else the whole error."""
    first, *_, last = str(error).splitlines()
    refusal = last.strip().removeprefix("millstream: ")
    return str(error) if last.strip() == refusal else f"{first.split(' ended ')[0]} cannot start: {refusal}"


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return f"exit code {code}"


def _stop(cluster: EmbeddedCluster) -> None:
    """Stops all nodes at the same time: in turn, each would wait for others to take over its leaders."""
    note("stopping")
    living = [number for number in cluster.nodes if cluster.started(number) and cluster.running(number)]
    for number in living:
        cluster.terminate(number)
    for number in living:
        try:
            cluster.stop(number)
        except NodeProcessError as error:
            complain(str(error).splitlines()[0])
    cluster.close()
