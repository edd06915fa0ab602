"""Changes of TLS and SASL settings while a node runs: certificates, and login modules with their users.

They come from dynamic settings of this broker, which are checked here before they go to the controller, and from the
settings file, which SIGHUP reads again. What cannot be used is refused with the reason, and the old one stays.
Connections that are authenticated stay, until they authenticate again.
"""

import logging
from collections.abc import Callable, Mapping

from millstream.common.background_tasks import BackgroundTasks
from millstream.config.broker_config import BrokerConfig, ConfigSource, build_broker_config
from millstream.config.catalog import LISTENER_PREFIX, broker_setting
from millstream.config.setting import ConfigError, Update
from millstream.formats.model.errors import ErrorCode, KafkaError
from millstream.formats.protocol.schema import Message
from millstream.node.environment import Environment
from millstream.node.metadata.configs import Operation
from millstream.node.metadata.image import ResourceType
from millstream.node.runtime.node_tls import NodeTls
from millstream.node.security.sasl_listeners import NodeLogin, SaslListeners

_log = logging.getLogger("millstream.security")


class SecuritySettings:
    def __init__(self, config: BrokerConfig, tls: NodeTls, sasl: SaslListeners, environment: Environment) -> None:
        self._config = config
        self._tls = tls
        self._sasl = sasl
        self._environment = environment
        logins = (environment.broker_login, environment.controller_login)
        self._logins = [login for login in logins if isinstance(login, NodeLogin)]
        self._tasks = BackgroundTasks()

    @property
    def are_used(self) -> bool:
        """Whether there is something that can change."""
        return self._tls.is_used or self._sasl.is_used or bool(self._logins)

    async def check(self, name: str, request: Message) -> None:
        """Checks a request of IncrementalAlterConfigs or AlterConfigs for this broker before it goes to the controller,
        which cannot read the files of this node. KafkaError says what is wrong."""
        for resource in request.resources:
            if resource.resource_type != ResourceType.BROKER or resource.resource_name != str(self._config.node_id):
                continue
            before = self._config.layers.get(ConfigSource.DYNAMIC_BROKER_CONFIG, {})
            own = _changed(before, resource) if name == "incremental_alter_configs" else _replaced(resource)
            if not any(each.startswith(LISTENER_PREFIX) for each in (*before, *own)):
                continue
            default = self._config.layers.get(ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, {})
            try:
                config = self._config.with_dynamic(default=default, own=own)
                await self._environment.offload(lambda config=config: self._prepare_logins(config))  # type: ignore[misc]
            except ConfigError as error:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"{error.message}. The old value stays.") from None
            await self._tls.check(config)

    def changed(self, config: BrokerConfig) -> None:
        """Takes settings over. The broker that got the request has checked them; a bad one is refused here too."""
        self._config = config
        self._tls.settings_changed(config)
        self._tasks.start(self._take_logins(config), loop=self._environment.loop)

    async def _take_logins(self, config: BrokerConfig) -> None:
        try:
            takes = await self._environment.offload(lambda: self._prepare_logins(config))
        except ConfigError as error:
            _log.error("login_modules_refused error=%s", error.message)
            return
        for take in takes:
            take()

    def _prepare_logins(self, config: BrokerConfig) -> list[Callable[[], None]]:
        takes = [self._sasl.prepare(config), *(login.prepare(config) for login in self._logins)]
        return [take for take in takes if take is not None]

    def close(self) -> None:
        self._tasks.cancel()


def _changed(before: Mapping[str, str], resource: Message) -> dict[str, str]:
    own = dict(before)
    for row in resource.configs:
        if row.config_operation == Operation.DELETE:
            own.pop(row.name, None)
        elif row.config_operation == Operation.SET and row.value is not None:
            own[row.name] = row.value
    return own


def _replaced(resource: Message) -> dict[str, str]:
    return {row.name: row.value for row in resource.configs if row.value is not None}


def with_security_of(running: BrokerConfig, read: BrokerConfig) -> BrokerConfig:
    """The settings of a running node with those of TLS and SASL that a file has now, as far as they can change."""

    def changeable(name: str) -> bool:
        setting = broker_setting(name)
        return (
            setting is not None and setting.update is Update.PER_BROKER and setting.name.startswith(("ssl.", "sasl."))
        )

    before = running.layers[ConfigSource.STATIC_BROKER_CONFIG]
    after = read.layers[ConfigSource.STATIC_BROKER_CONFIG]
    layer = {name: value for name, value in before.items() if not changeable(name)}
    layer |= {name: value for name, value in after.items() if changeable(name)}
    layers = {**running.layers, ConfigSource.STATIC_BROKER_CONFIG: layer}
    return build_broker_config(layers, unknown=running.unknown, warnings=running.warnings)
