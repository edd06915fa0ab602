"""Exposure: listeners that other machines can reach without authentication, and secrets in the process list."""

import ipaddress
from collections.abc import Iterable, Iterator

from millstream.common.secret_references import has_reference
from millstream.config.addresses import Listener
from millstream.config.broker_config import BrokerConfig
from millstream.config.catalog import broker_setting
from millstream.config.setting import ConfigError
from millstream.config.table import authorization, protection, ssl


def check_exposure(config: BrokerConfig, *, insecure: bool) -> None:
    """ConfigError if a listener is open to other machines, unless this was allowed."""
    if insecure or config[protection.MILLSTREAM_ALLOW_INSECURE_LISTENERS]:
        return
    for listener in open_listeners(config):
        everywhere = listener.host in ("", "0.0.0.0", "::")  # nosec B104: compared, not bound
        where = "listens on every network interface" if everywhere else "can be reached from other machines"
        how = "TLS without client certificates" if listener.security_protocol == "SSL" else "no authentication"
        local = Listener(listener.name, "127.0.0.1", listener.port)
        raise ConfigError(
            f"listener {listener} {where} with {how}, so any program on the network could read, write and delete"
            f" everything. Either use it on this machine only (listeners={local}, or --listen"
            f" 127.0.0.1:{listener.port}), or secure it (`millstream security init DIR` makes certificates, a first"
            " user and settings; docs/security.md), or allow it with --insecure or"
            f" {protection.MILLSTREAM_ALLOW_INSECURE_LISTENERS.name}=true in a network that you trust",
            name="listeners",
        )


def exposure_warnings(config: BrokerConfig) -> list[str]:
    """What to say loudly about listeners that are open to other machines, because this was allowed."""
    lines = [
        f"listener {listener}: clients do not authenticate, so all who reach it can read, write and delete "
        + ("what ACLs give to User:ANONYMOUS" if config[authorization.AUTHORIZER_CLASS_NAME] else "everything")
        for listener in open_listeners(config)
    ]
    how = "secure it: `millstream security init DIR` makes certificates, a first user and settings (docs/security.md)"
    return [*lines, how] if lines else []


def open_listeners(config: BrokerConfig) -> Iterator[Listener]:
    """The listeners beyond loopback whose clients do not authenticate."""
    for listener in (*config.listeners, *config.controller_listeners):
        if is_loopback(listener.host):
            continue
        certified = config.listener(listener.name)[ssl.SSL_CLIENT_AUTH] == "required"
        if listener.security_protocol == "PLAINTEXT" or (listener.security_protocol == "SSL" and not certified):
            yield listener


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. A host name other than localhost counts as reachable."""
    if host.lower() in ("localhost", "ip6-localhost"):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def check_words(words: Iterable[str]) -> None:
    """ConfigError if a `--set name=value` has a secret, which the process list would show."""
    for word in words:
        name, _, value = (part.strip() for part in word.partition("="))
        setting = broker_setting(name)
        if setting is not None and setting.sensitive and value and not has_reference(value):
            raise ConfigError(
                f"--set {name}=…: the process list would show this secret to every user of the machine: put it into the"
                f" file for --config, or write --set '{name}=${{file:/path:key}}' or '{name}=${{env:NAME}}'",
                name=name,
            )
