"""`millstream serve`: turns options into settings and runs a broker with them.

Prints exactly one line on stdout, `ready kafka=HOST:PORT http=HOST:PORT`, when it accepts connections, and one line on
stderr if it fails. The broker is in `node.runtime`, settings are in `config`, HTTP is served by a child process
(`gateway_process`). With `--cores`, the nodes are child processes too (`cores`).

Each log event is one line: characters that cannot be printed, such as a line break in the name of a group, are
escaped, and the lines of a stack trace are indented.
"""

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from millstream.cli import exit_codes
from millstream.common.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from millstream.cli.gateway_process import GatewayProcess
    from millstream.config.broker_config import BrokerConfig


DEFAULT_PORT = 9092
FORCED_EXIT_AFTER_SECONDS = 10.0
_VALUED = {
    "--data-dir": "data_dir",
    "--listen": "listen",
    "--config": "config",
    "--set": "settings",
    "--http": "http",
    "--auth-file": "auth_file",
    "--tls-cert": "tls_cert",
    "--tls-key": "tls_key",
    "--command-config": "command_config",
    "--pass-through": "pass_through",
    "--access-file": "access_file",
    "--allowed-origin": "allowed_origins",
    "--trusted-proxy": "trusted_proxies",
    "--tls-client-ca": "tls_client_ca",
    "--cluster": "clusters",
    "--cluster-config": "cluster_configs",
    "--cluster-access": "cluster_access",
    "--cluster-name": "cluster_name",
    "--bootstrap-user": "bootstrap_user",
    "--bootstrap-password-file": "bootstrap_password_file",
    "--cores": "cores",
    "--core": "core",
    "--core-ports": "core_ports",
}
_REPEATED = ("--set", "--allowed-origin", "--trusted-proxy", "--cluster", "--cluster-config", "--cluster-access")
_FLAGS = {"--exit-with-stdin": "exit_with_stdin", "--no-http": "no_http", "--insecure": "insecure"}


@dataclass(slots=True)
class ServeOptions:
    """The options of the command line."""

    data_dir: str | None = None
    listen: str | None = None
    config: str | None = None
    settings: list[str] = field(default_factory=list)
    exit_with_stdin: bool = False
    http: str | None = None
    no_http: bool = False
    auth_file: str | None = None
    insecure: bool = False
    tls_cert: str | None = None
    tls_key: str | None = None
    command_config: str | None = None
    pass_through: str | None = None
    access_file: str | None = None
    allowed_origins: list[str] = field(default_factory=list)
    trusted_proxies: list[str] = field(default_factory=list)
    tls_client_ca: str | None = None
    clusters: list[str] = field(default_factory=list)
    cluster_configs: list[str] = field(default_factory=list)
    cluster_access: list[str] = field(default_factory=list)
    cluster_name: str | None = None
    bootstrap_user: str | None = None
    bootstrap_password_file: str | None = None
    cores: str | None = None
    """The number of nodes, or `auto`."""
    core: str | None = None
    """Which of the nodes this process is, from 0. Written by the supervisor of the nodes, with `core_ports`."""
    core_ports: str | None = None

    def node_words(self) -> list[str]:
        """The options that all nodes of `--cores` share."""
        valued = (
            ("--data-dir", self.data_dir),
            ("--listen", self.listen),
            ("--config", self.config),
            *(("--set", each) for each in self.settings),
        )
        words = [word for name, value in valued if value is not None for word in (name, value)]
        return [*words, "--insecure"] if self.insecure else words


def parse(arguments: Sequence[str]) -> ServeOptions | None:
    """Parses `--name value` and `--name=value`; None for anything else."""
    options = ServeOptions()
    rest = iter(arguments)
    for argument in rest:
        if argument in _FLAGS:
            setattr(options, _FLAGS[argument], True)
            continue
        name, equals, value = argument.partition("=")
        if name not in _VALUED:
            return None
        if not equals:
            following = next(rest, None)
            if following is None:
                return None
            value = following
        if name in _REPEATED:
            getattr(options, _VALUED[name]).append(value)
        else:
            setattr(options, _VALUED[name], value)
    return options


def run(options: ServeOptions) -> int:
    """Serves until SIGTERM or SIGINT; returns the exit code."""
    from millstream.config.setting import ConfigError
    from millstream.formats.model.errors import KafkaError
    from millstream.gateway.http.configuration import GatewayError

    try:
        return _serve(options)
    except (ConfigError, KafkaError) as error:
        return _failed(error.message)
    except GatewayError as error:
        return _failed(str(error))
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return _failed(f"{error.strerror or error}{where}")
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


def listen_address(text: str) -> str:
    """The complete address for `--listen`: a port alone is on loopback, a host alone has port 9092."""
    if text.isdigit():
        return f"127.0.0.1:{text}"
    if text.startswith(":"):
        return f"127.0.0.1{text}"
    if ":" not in text or text.endswith("]"):
        return f"{text}:{DEFAULT_PORT}"
    return text


def _serve(options: ServeOptions) -> int:
    from millstream.config.exposure import check_exposure, check_words, exposure_warnings
    from millstream.config.loading import load_broker_config

    check_words(options.settings)

    def load() -> "BrokerConfig":
        config = load_broker_config(
            file=options.config,
            overrides=options.settings,
            listen=None if options.listen is None else listen_address(options.listen),
            data_dir=options.data_dir,
        )
        check_exposure(config, insecure=options.insecure)
        return config

    config = load()
    if options.core is not None:
        return _serve_core(options, config, load)
    for warning in (*config.unknown, *config.warnings, *config.without_effect):
        print(f"millstream: warning: {warning}", file=sys.stderr)
    count = _cores(options, config)
    if options.bootstrap_user is not None:
        _write_bootstrap_user(options.bootstrap_user, options.bootstrap_password_file, config)
    if options.exit_with_stdin:
        exit_with_parent()
    log_to_stderr()
    _warn_loudly(exposure_warnings(config))
    with _resized(config, count) as resized:
        return (
            _serve_cores(options, config, count, resized) if count > 1 else _serve_one(options, config, load, resized)
        )


def _serve_one(
    options: ServeOptions, config: "BrokerConfig", load: Callable[[], "BrokerConfig"], resized: Callable[[], None]
) -> int:
    """Runs one node in this process. `load` reads its settings again."""
    gateway = _open_gateway(options, config)
    from millstream.node.runtime.running import run as run_node
    from millstream.node.runtime.service_manager import ServiceManager

    service = ServiceManager.of(os.environ)

    def ready(address: str) -> None:
        resized()
        served = config.listeners or config.controller_listeners
        _announce(address, gateway, protocol=served[0].security_protocol, serves_clients=config.is_broker)
        if gateway is not None:
            gateway.start(_address_for_gateway(config, gateway.cluster_listener, address))

    return run_node(config, ready, lambda: None if gateway is None else gateway.stop(), load, service)


@contextmanager
def _resized(config: "BrokerConfig", count: int) -> Iterator[Callable[[], None]]:
    """Moves logs if the data directory had another number of nodes; the function ends the change when all serve."""
    folders = os.path.join(config.data_dir, "cores")
    if count == 1 and not os.path.exists(folders):
        yield lambda: None
        return
    from millstream.cli.cores.resizing import Resizing

    with Resizing(config, count) as resizing:
        resizing.run()
        yield resizing.finish


def _cores(options: ServeOptions, config: "BrokerConfig") -> int:
    """The number of nodes that this command runs."""
    from millstream.config.cores import check_cores, parse_cores
    from millstream.config.table import node

    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if options.cores is not None:
        count = parse_cores(options.cores, available, name="--cores")
    else:
        count = parse_cores(config[node.CORES], available)
    check_cores(config, count)
    if options.cores is None and not config.is_set(node.CORES):
        _check_stored_nodes(config)
    if count > available:
        print(
            f"millstream: warning: {count} nodes share {available} core(s): more nodes than cores make nothing faster",
            file=sys.stderr,
        )
    return count


def _check_stored_nodes(config: "BrokerConfig") -> None:
    """ConfigError if the directory has several nodes, and no number is given: nothing is moved by mistake."""
    if not os.path.exists(os.path.join(config.data_dir, "cores")):
        return
    from millstream.cli.cores.resizing import stored_nodes
    from millstream.config.setting import ConfigError

    stored = stored_nodes(config.data_dir)
    if stored > 1:
        raise ConfigError(
            f"{config.data_dir} has {stored} nodes: give --cores {stored}, or --cores 1 to move everything into one"
        )


def _serve_cores(options: ServeOptions, config: "BrokerConfig", count: int, resized: Callable[[], None]) -> int:
    """Runs several nodes as child processes."""
    from millstream.cli.cores.supervisor import Supervisor
    from millstream.node.runtime.service_manager import ServiceManager

    supervisor = Supervisor(config, count, options.node_words(), ServiceManager.of(os.environ))
    gateway = _open_gateway(options, config)

    def ready() -> None:
        resized()
        _announce(supervisor.addresses(), gateway, protocol=config.listeners[0].security_protocol, serves_clients=True)
        if gateway is not None:
            gateway.start(supervisor.addresses(gateway.cluster_listener))

    return supervisor.run(gateway, ready)


def _serve_core(options: ServeOptions, config: "BrokerConfig", load: Callable[[], "BrokerConfig"]) -> int:
    """Runs one of several nodes. Its supervisor has printed the warnings, and reads the ready line."""
    import json
    import socket

    from millstream.config.cores import core_config
    from millstream.config.setting import ConfigError
    from millstream.node.runtime.running import run as run_node
    from millstream.node.runtime.service_manager import ServiceManager

    try:
        assert options.core is not None and options.core_ports is not None
        index, ports = int(options.core), json.loads(options.core_ports)

        def of_this_core(whole: "BrokerConfig") -> "BrokerConfig":
            return core_config(whole, index, ports, socket.gethostname())

        own = of_this_core(config)
    except (AssertionError, ValueError, KeyError, IndexError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("--core and --core-ports are written by `serve --cores`: use --cores N instead") from None
    exit_with_parent()
    log_to_stderr(prefix=f"node={own.node_id} ")
    try:
        return run_node(
            own,
            lambda address: print(f"ready kafka={address}", flush=True),
            lambda: None,
            lambda: of_this_core(load()),
            ServiceManager.of(os.environ),
        )
    except ConfigError as error:
        raise ConfigError(f"node={own.node_id} {error.message}", name=error.name) from None


def _warn_loudly(warnings: Sequence[str]) -> None:
    """These lines stand out in any log."""
    if warnings:
        for line in ("*" * 80, *(f"WARNING: {text}" for text in warnings), "*" * 80):
            logging.getLogger("millstream.exposure").warning("%s", line)


def _write_bootstrap_user(name: str, password_file: str | None, config: "BrokerConfig") -> None:
    """Writes the first user of a new cluster. Later starts ignore the option: the user is in the metadata log."""
    from millstream.cli.terminal import CommandFailedError
    from millstream.cli.user import is_in_use, read_password, write_first_user
    from millstream.config.setting import ConfigError
    from millstream.node.security.core.scram import SCRAM_MECHANISMS

    if is_in_use(config.data_dir):
        return
    try:
        text = read_password(name, password_file, confirm=False)
        write_first_user(name, config.data_dir, text, list(SCRAM_MECHANISMS))
    except CommandFailedError as error:
        raise ConfigError(f"--bootstrap-user {name}: {error}") from None


def _open_gateway(options: ServeOptions, config: "BrokerConfig") -> "GatewayProcess | None":
    """Opens the gateway. It is on by default, but not for brokers of tests and of local clusters."""
    from millstream.cli.gateway_process import HttpOptions, open_gateway_process
    from millstream.gateway.http.configuration import GatewayError

    if options.http is not None and options.no_http:
        raise GatewayError("--http and --no-http exclude each other")
    if options.http is not None and not config.is_broker:
        raise GatewayError("--http: this node is only a controller and serves no clients: use --http on a broker")
    by_default = config.is_broker and not options.exit_with_stdin
    http = HttpOptions(
        options.http,
        options.no_http,
        options.auth_file,
        options.insecure,
        options.tls_cert,
        options.tls_key,
        options.command_config,
        options.pass_through,
        options.access_file,
        tuple(options.allowed_origins),
        tuple(options.trusted_proxies),
        options.tls_client_ca,
        tuple(options.clusters),
        tuple(options.cluster_configs),
        tuple(options.cluster_access),
        options.cluster_name,
    )
    protocols = [listener.security_protocol for listener in config.listeners] or ["PLAINTEXT"]
    return open_gateway_process(http, by_default=by_default, protocols=protocols)


def _address_for_gateway(config: "BrokerConfig", place: int, first: str) -> str:
    """The advertised address of the listener at this place: certificates are valid for advertised names."""
    if place == 0:
        return first
    import socket

    (shown,) = config.advertised({}, socket.gethostname(), [config.listeners[place]])
    return str(shown).partition("://")[2]


def _failed(reason: str) -> int:
    print(f"millstream: {reason}", file=sys.stderr)
    return exit_codes.FAILED


def _announce(address: str, gateway: "GatewayProcess | None", *, protocol: str, serves_clients: bool) -> None:
    http = "" if gateway is None else f" http={gateway.address}"
    print(f"ready kafka={address}{http}" + ("" if protocol == "PLAINTEXT" else f" protocol={protocol}"), flush=True)
    if serves_clients and protocol == "PLAINTEXT" and sys.stderr.isatty():
        option = "" if address.split(",")[0].endswith(":9092") else f" -b {address}"
        console = "" if gateway is None else f" Open {gateway.url}/console in a browser."
        body = '\'{"records": [{"value": {"item": "tea"}}]}\''
        client = "" if find_spec("confluent_kafka") else "  pip install 'millstream[client]'\n"
        http_hint = "" if gateway is None else f"  curl {gateway.url}/v1/topics/orders/produce -d {body}\n"
        print(
            f"\nMillstream is listening on {address}.{console} Try, in another terminal:\n"
            f"{client}"
            f"  millstream topic create orders{option}\n"
            f"  echo hello | millstream produce orders{option}\n"
            f"  millstream consume orders --follow{option}\n"
            f"{http_hint}"
            f"  millstream bench{option}\n"
            "Ctrl-C stops it; the data stays.",
            file=sys.stderr,
            flush=True,
        )


def log_to_stderr(usual_level: str = "INFO", *, prefix: str = "") -> None:
    """Logs to stderr, each line with the prefix; $MILLSTREAM_LOG_LEVEL overrides the level."""
    level = os.environ.get("MILLSTREAM_LOG_LEVEL", usual_level).upper()
    known = logging.getLevelNamesMapping()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(prefix))
    logging.basicConfig(level=known.get(level, logging.INFO), handlers=[handler])


def exit_with_parent() -> None:
    """Stops this process when the parent process ends, that is when stdin is closed."""

    def watch() -> None:
        import signal
        import time

        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(FORCED_EXIT_AFTER_SECONDS)
        os._exit(exit_codes.FAILED)  # a child that cannot stop cleanly must not outlive its parent

    threading.Thread(target=watch, name="stdin-watch", daemon=True).start()


class LineFormatter(logging.Formatter):
    """One line for each event, and for each line of a stack trace; every line begins with the prefix."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return self._prefix + text.replace("\n", f"\n{self._prefix}") if self._prefix else text

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # as logging calls it
        return _printable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _indented(super().formatStack(stack_info))


def _indented(lines: str) -> str:
    return "\n".join(f"  {_printable(line)}" for line in lines.split("\n"))


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
