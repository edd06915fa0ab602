"""Several nodes from one configuration: the ids, folders, ports and settings of the nodes of `serve --cores`.

The first node has the settings as they are written: its id, its data directory, its ports. It alone may be a
controller. Each further node is a broker:

- Its id is `node.id` plus 1000, 2000 and so on. So the ids are the same after a restart and for any number of cores,
  and different on every machine, as long as each `node.id` is below 1000.
- Its folder is `cores/2`, `cores/3` and so on in the data directory.
- Its ports are the next ones after those of the node before it. Ports that the file names are left out.
- Its machine is that of the first node (`millstream.machine.id`).

Without a listener for controllers, the first node gets one, for the other nodes only. It has the security protocol and
the settings of the listener between brokers. Pure: processes are in `cli/cores`.
"""

from collections.abc import Callable, Mapping, Sequence

from millstream.config.addresses import SECURITY_PROTOCOLS, Listener
from millstream.config.broker_config import BrokerConfig, ConfigSource, build_broker_config
from millstream.config.catalog import LISTENER_PREFIX
from millstream.config.exposure import is_loopback
from millstream.config.setting import ConfigError
from millstream.config.table import node, sasl
from millstream.formats.model.placement import default_machine

MAX_CORES = 64
ID_STEP = 1000
"""The distance of the ids of two nodes of a machine; `node.id` must be below it."""
FOLDERS = "cores"
"""The directory, inside the data directory, with the folders of all nodes but the first."""
AUTO = "auto"
_LOOPBACK = "127.0.0.1"
_EVERY_INTERFACE = ("", "0.0.0.0", "::")  # nosec B104: compared, not bound
_PORTS = 65535

Ports = Mapping[str, int]
"""The ports of one node, by the name of the listener."""


def parse_cores(text: str, available: int, *, name: str = node.CORES.name) -> int:
    """The number of nodes; `available` is the number of cores for `auto`. ConfigError names `name`."""
    wanted = text.strip().lower()
    if wanted == AUTO:
        return max(1, min(available, MAX_CORES))
    if not (wanted.isascii() and wanted.isdigit() and len(wanted) <= 9 and 1 <= int(wanted) <= MAX_CORES):
        raise ConfigError(f"{name}={text} is not allowed: write a number from 1 to {MAX_CORES}, or {AUTO}", name=name)
    return int(wanted)


def check_cores(config: BrokerConfig, count: int) -> None:
    """ConfigError if this configuration cannot have several nodes."""
    if count == 1:
        return
    name = node.CORES.name
    if not config.is_broker:
        raise ConfigError(
            f"{name}={count}: a node with process.roles=controller uses one core; remove it, or add the role broker",
            name=name,
        )
    if config.node_id >= ID_STEP:
        raise ConfigError(
            f"node.id={config.node_id} must be below {ID_STEP} with {name}={count}: the further nodes have the ids "
            f"node.id+{ID_STEP}, node.id+{2 * ID_STEP} and so on",
            name="node.id",
        )
    shown = {listener.name: listener for listener in config.advertised_listeners}
    for listener in config.listeners:
        if listener.port == 0 and listener.name in shown and shown[listener.name].port:
            raise ConfigError(
                f"advertised.listeners has a port for {listener.name}, but listeners has port 0: with {name}={count} "
                "write the port of the first node in listeners too",
                name="advertised.listeners",
            )


def core_id(config: BrokerConfig, index: int) -> int:
    """The id of a node; index 0 is the first one."""
    return config.node_id + ID_STEP * index


def core_folder(data_dir: str, index: int) -> str:
    """The data directory of a node."""
    return data_dir if index == 0 else f"{data_dir}/{FOLDERS}/{index + 1}"


def machine_name(config: BrokerConfig) -> str:
    """The machine of all nodes of this configuration."""
    return config[node.MACHINE_ID] or default_machine(config.node_id)


def added_controller_listener(config: BrokerConfig) -> str | None:
    """The name of the listener for controllers that several nodes need, if there is none."""
    added = _controller_listeners(config)
    return added[0].name if added and not config.controller_listeners else None


def allot_ports(
    config: BrokerConfig, count: int, free_port: Callable[[], int], *, controller_port: int = 0
) -> tuple[Ports, ...]:
    """The ports of each node. Port 0 is replaced by `free_port()`, so that a node that is restarted has the same one.

    A larger count does not change the ports of the first nodes. `controller_port` is for a listener for controllers
    that is added.
    """
    controllers = _controller_listeners(config) if count > 1 else config.controller_listeners
    written = (*config.listeners, *controllers)
    taken = {listener.port for listener in written if listener.port}
    first = {listener.name: listener.port for listener in written}
    added = added_controller_listener(config) if count > 1 else None
    if added is not None and not first[added] and controller_port not in taken:
        first[added] = controller_port
        taken.add(controller_port)
    first = {name: port or free_port() for name, port in first.items()}
    ports: list[dict[str, int]] = [first]
    for _ in range(1, count):
        own: dict[str, int] = {}
        for listener in config.listeners:
            if listener.port == 0:
                own[listener.name] = free_port()
                continue
            port = ports[-1][listener.name] + 1
            while port in taken:
                port += 1
            if port > _PORTS:
                raise ConfigError(
                    f"listeners: {listener} leaves no room for the ports of {count} nodes; use a lower port",
                    name="listeners",
                )
            taken.add(port)
            own[listener.name] = port
        ports.append(own)
    return tuple(ports)


def core_config(config: BrokerConfig, index: int, ports: Sequence[Ports], local_host: str) -> BrokerConfig:
    """The settings of one of the nodes. `ports` are those of all nodes, `local_host` is the name of this machine."""
    controllers = _controller_listeners(config) if len(ports) > 1 else config.controller_listeners
    layer = dict(config.layers[ConfigSource.STATIC_BROKER_CONFIG])
    for name in ("broker.id", "log.dir", "metadata.log.dir", node.CORES.name):
        layer.pop(name, None)
    layer["node.id"] = str(core_id(config, index))
    layer["log.dirs"] = ",".join(core_folder(each, index) for each in config.log_dirs)
    if config.data_dir != config.log_dirs[0]:
        layer["metadata.log.dir"] = core_folder(config.data_dir, index)
    if index > 0:
        layer[node.MACHINE_ID.name] = machine_name(config)
        layer["process.roles"] = "broker"
    if controllers != config.controller_listeners:
        _add_controller_listener(config, controllers[0], layer)
    own = (*config.listeners, *(controllers if index == 0 else ()))
    bound = tuple(Listener(each.name, each.host, ports[index][each.name]) for each in own)
    layer["listeners"] = ",".join(map(str, bound))
    advertised = _advertised(config, ports[0], bound)
    if advertised:
        layer["advertised.listeners"] = ",".join(map(str, advertised))
    else:
        layer.pop("advertised.listeners", None)
    if index > 0 and not config.voters and config.is_controller and (config.is_alone or not config.bootstrap_servers):
        address = _controller_address(config, controllers[0], ports[0], local_host)
        layer[node.CONTROLLER_QUORUM_BOOTSTRAP_SERVERS.name] = address
    return build_broker_config(
        {ConfigSource.STATIC_BROKER_CONFIG: layer}, unknown=config.unknown, warnings=config.warnings
    )


def _advertised(config: BrokerConfig, first: Ports, bound: Sequence[Listener]) -> list[Listener]:
    """The advertised addresses: where the first node advertises another port, further ones have the same distance."""
    given = {listener.name: listener for listener in config.advertised_listeners}
    result = []
    for listener in bound:
        shown = given.get(listener.name)
        if shown is not None:
            port = shown.port + listener.port - first[listener.name] if shown.port else 0
            if port > _PORTS:
                raise ConfigError(
                    f"advertised.listeners: {shown} leaves no room for the ports of all nodes; use a lower port",
                    name="advertised.listeners",
                )
            result.append(Listener(listener.name, shown.host, port))
    return result


def _controller_listeners(config: BrokerConfig) -> tuple[Listener, ...]:
    """The listeners of the first node for controllers and for the other nodes; one is added if there is none."""
    if config.controller_listeners or not config.is_controller:
        return config.controller_listeners
    own = next((voter for voter in config.voters if voter.id == config.node_id), None)
    names = config[node.CONTROLLER_LISTENER_NAMES]
    used = {listener.name for listener in config.listeners}
    name = names[0].upper() if names else next(each for each in ("CONTROLLER", "CORES", "CORES2") if each not in used)
    inter = next(each for each in config.listeners if each.name == config.inter_broker_listener)
    # Without authentication, only this machine may reach it.
    host = _LOOPBACK if inter.security_protocol == "PLAINTEXT" else inter.host
    return (Listener(name, host, own.port if own is not None else 0, inter.security_protocol),)


def _controller_address(config: BrokerConfig, listener: Listener, first: Ports, local_host: str) -> str:
    """The address at which the other nodes find the first one. Certificates are valid for advertised names."""
    shown = {each.name: each.host for each in config.advertised_listeners}
    host = shown.get(listener.name) or listener.host
    if listener.security_protocol in ("SSL", "SASL_SSL") and not is_loopback(host):
        host = shown.get(listener.name) or shown.get(config.inter_broker_listener) or host
    if host in _EVERY_INTERFACE:
        host = local_host if listener.security_protocol in ("SSL", "SASL_SSL") else _LOOPBACK
    return f"[{host}]:{first[listener.name]}" if ":" in host else f"{host}:{first[listener.name]}"


def _add_controller_listener(config: BrokerConfig, added: Listener, layer: dict[str, str]) -> None:
    layer[node.CONTROLLER_LISTENER_NAMES.name] = added.name
    protocols = {**config.protocols, added.name: added.security_protocol}
    assert set(protocols.values()) <= set(SECURITY_PROTOCOLS)
    layer[node.LISTENER_SECURITY_PROTOCOL_MAP.name] = ",".join(f"{name}:{value}" for name, value in protocols.items())
    between = f"{LISTENER_PREFIX}{config.inter_broker_listener.lower()}."
    for name, text in config.layers[ConfigSource.STATIC_BROKER_CONFIG].items():
        if name.startswith(between):
            layer.setdefault(f"{LISTENER_PREFIX}{added.name.lower()}.{name.removeprefix(between)}", text)
    mechanism = sasl.SASL_MECHANISM_INTER_BROKER_PROTOCOL.name
    if mechanism in layer:
        layer.setdefault(sasl.SASL_MECHANISM_CONTROLLER_PROTOCOL.name, layer[mechanism])
