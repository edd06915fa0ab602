"""SASL of a node, made from its settings: what each listener accepts, and how this node logs in to others.

Every setting that is missing or not supported is a ConfigError at the start, with the name of the setting.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from millstream.common.bearer_tokens import TokenSource, is_private
from millstream.common.lazy_dataclass import dataclass
from millstream.config.broker_config import BrokerConfig, ListenerConfig
from millstream.config.catalog import LISTENER_PREFIX
from millstream.config.jaas import LoginModule, parse_jaas
from millstream.config.setting import ConfigError, Setting
from millstream.config.table import sasl
from millstream.node.environment import Environment
from millstream.node.security.core.plain import PlainServer
from millstream.node.security.core.sasl import Mechanism
from millstream.node.security.core.scram import SCRAM_MECHANISMS, Find, ScramMechanism, ScramServer
from millstream.node.security.credentials import Credentials
from millstream.node.security.sasl_client import OAuthBearerLogin, PlainLogin, SaslLogin, ScramLogin
from millstream.node.security.sasl_server import SaslCounts, SaslGate, SaslRules
from millstream.node.server.channel import Ask
from millstream.node.server.service import Peer

if TYPE_CHECKING:
    from millstream.node.security.jwks import TokenVerifier
    from millstream.node.security.kerberos import KerberosLogin

_log = logging.getLogger("millstream.security")
_MODULES = {
    "PLAIN": ("PlainLoginModule",),
    "SCRAM-SHA-256": ("ScramLoginModule",),
    "SCRAM-SHA-512": ("ScramLoginModule",),
    "OAUTHBEARER": ("OAuthBearerLoginModule",),
    "GSSAPI": ("Krb5LoginModule",),
}


@dataclass(slots=True)
class _Served:
    """A listener of this node."""

    config: ListenerConfig
    mechanisms: dict[str, Callable[[], Mechanism]]
    """Used by all connections; each call begins a login. Replaced when a login module changes."""


class SaslListeners:
    """The SASL listeners of a node."""

    def __init__(self, credentials: Credentials, environment: Environment, new_nonce: Callable[[], str]) -> None:
        self._credentials = credentials
        self._environment = environment
        self._new_nonce = new_nonce
        self._verifiers: list[TokenVerifier] = []
        self._served: list[_Served] = []
        self.counts = SaslCounts()

    def authentication(self, config: ListenerConfig) -> Callable[[Peer], SaslGate]:
        """What begins the authentication of a connection to this listener. Raises ConfigError."""
        rules = self._rules(config)
        served = _Served(config, dict(rules.mechanisms))
        rules = replace(rules, mechanisms=served.mechanisms)
        self._served.append(served)
        protocol = config.security_protocol

        def begin(peer: Peer) -> SaslGate:
            peer.security_protocol = protocol
            return SaslGate(peer, rules, self.counts, self._environment)

        return begin

    @property
    def is_used(self) -> bool:
        return bool(self._served)

    def prepare(self, config: BrokerConfig) -> Callable[[], None] | None:
        """What takes changed login modules over; None if there are none. It may read files. Raises ConfigError."""
        changes: list[tuple[_Served, ListenerConfig, dict[str, Callable[[], Mechanism]]]] = []
        for served in self._served:
            fresh = config.listener(served.config.name)
            made = {
                name: self._mechanism(fresh, name)
                for name in served.mechanisms
                if _jaas(fresh, name) != _jaas(served.config, name) and name != "OAUTHBEARER"
            }
            if made:
                changes.append((served, fresh, made))
        if not changes:
            return None

        def take() -> None:
            for served, fresh, made in changes:
                served.config = fresh
                served.mechanisms.update(made)
                _log.info("login_modules_replaced listener=%s mechanisms=%s", fresh.name, ",".join(made))

        return take

    def start(self) -> None:
        for verifier in self._verifiers:
            verifier.start()

    def close(self) -> None:
        for verifier in self._verifiers:
            verifier.close()

    def _rules(self, config: ListenerConfig) -> SaslRules:
        names = config[sasl.SASL_ENABLED_MECHANISMS]
        unsupported = [name for name in names if name not in sasl.MECHANISMS]
        if unsupported or not names:
            raise ConfigError(
                f"sasl.enabled.mechanisms={','.join(names)} of listener {config.name}: "
                f"{', '.join(unsupported) or 'nothing'} is not supported; give one or more of "
                f"{', '.join(sasl.MECHANISMS)}, for example {LISTENER_PREFIX}{config.name.lower()}."
                "sasl.enabled.mechanisms=SCRAM-SHA-512",
                name=sasl.SASL_ENABLED_MECHANISMS.name,
            )
        _check_classes(config)
        if config[sasl.SASL_JAAS_CONFIG]:
            _log.warning(
                "setting_not_used listener=%s name=sasl.jaas.config reason=it has no mechanism, as in Kafka: write %s",
                config.name, _jaas_name(config, names[0]),
            )  # fmt: skip
        return SaslRules(
            mechanisms={name: self._mechanism(config, name) for name in names},
            max_reauth_ms={name: _of_mechanism(config, name, sasl.CONNECTIONS_MAX_REAUTH_MS) for name in names},
            max_receive_bytes=config[sasl.SASL_SERVER_MAX_RECEIVE_SIZE],
            failure_delay_s=config[sasl.CONNECTION_FAILED_AUTHENTICATION_DELAY_MS] / 1000,
        )

    def _mechanism(self, config: ListenerConfig, name: str) -> Callable[[], Mechanism]:
        if name == "PLAIN":
            return self._plain(config)
        if name == "OAUTHBEARER":
            return self._oauthbearer(config)
        if name == "GSSAPI":
            return self._gssapi(config)
        mechanism = SCRAM_MECHANISMS[name]
        _login_module(config, name)  # only checked: users are in the metadata
        return lambda: ScramServer(mechanism, self._finder(mechanism), self._new_nonce)

    def _finder(self, mechanism: ScramMechanism) -> Find:
        credentials = self._credentials
        return lambda name, by_token: credentials.find(mechanism, name, by_token)

    def _plain(self, config: ListenerConfig) -> Callable[[], Mechanism]:
        module = _login_module(config, "PLAIN")
        users: Mapping[str, str] = module.users if module is not None else {}
        if not users:
            setting = _jaas_name(config, "PLAIN")
            raise ConfigError(
                f"listener {config.name} has PLAIN in sasl.enabled.mechanisms and no users: write {setting}="
                'org.apache.kafka.common.security.plain.PlainLoginModule required user_NAME="PASSWORD";',
                name=setting,
            )
        return lambda: PlainServer(lambda: users)

    def _gssapi(self, config: ListenerConfig) -> Callable[[], Mechanism]:
        from millstream.node.security.kerberos import GssapiServer, KerberosAcceptor

        login, setting = _kerberos(config)
        rules = config[sasl.SASL_KERBEROS_PRINCIPAL_TO_LOCAL_RULES]
        acceptor = KerberosAcceptor(login, rules, self._environment, name=setting)
        return lambda: GssapiServer(acceptor)

    def _oauthbearer(self, config: ListenerConfig) -> Callable[[], Mechanism]:
        # Imported here: a node without OAUTHBEARER starts faster.
        from millstream.node.security.core.oauthbearer import OAuthBearerServer, TokenRules
        from millstream.node.security.jwks import TokenVerifier, check_url

        _login_module(config, "OAUTHBEARER")
        name = sasl.SASL_OAUTHBEARER_JWKS_ENDPOINT_URL.name
        url = config[sasl.SASL_OAUTHBEARER_JWKS_ENDPOINT_URL]
        if not url:
            raise ConfigError(
                f"listener {config.name} has OAUTHBEARER in sasl.enabled.mechanisms and no keys: set {name} to the "
                "JWKS address of the issuer of tokens, or to a file (file:///PATH). Tokens without a signature are "
                "not accepted",
                name=name,
            )
        rules = TokenRules(
            issuer=config[sasl.SASL_OAUTHBEARER_EXPECTED_ISSUER] or None,
            audiences=config[sasl.SASL_OAUTHBEARER_EXPECTED_AUDIENCE],
            clock_skew_s=config[sasl.SASL_OAUTHBEARER_CLOCK_SKEW_SECONDS],
            subject_claim=config[sasl.SASL_OAUTHBEARER_SUB_CLAIM_NAME],
            scope_claim=config[sasl.SASL_OAUTHBEARER_SCOPE_CLAIM_NAME],
            groups_claim=config[sasl.OAUTHBEARER_GROUPS_CLAIM_NAME] or None,
        )
        verifier = TokenVerifier(
            check_url(url, name=name, schemes=("https", "http", "file")),
            rules,
            self._environment,
            refresh_s=config[sasl.SASL_OAUTHBEARER_JWKS_ENDPOINT_REFRESH_MS] / 1000,
            first_backoff_s=config[sasl.SASL_OAUTHBEARER_JWKS_ENDPOINT_RETRY_BACKOFF_MS] / 1000,
            longest_backoff_s=config[sasl.SASL_OAUTHBEARER_JWKS_ENDPOINT_RETRY_BACKOFF_MAX_MS] / 1000,
        )
        self._verifiers.append(verifier)
        return lambda: OAuthBearerServer(verifier.validate)


class NodeLogin:
    """The login of this node to one kind of nodes, which follows changes of its login module."""

    def __init__(
        self, login: SaslLogin, config: BrokerConfig, listener: str, setting: Setting[str], environment: Environment
    ) -> None:
        self._login = login
        self._config = config
        self._listener = listener
        self._setting = setting
        self._environment = environment

    async def log_in(self, ask: Ask, host: str) -> float | None:
        return await self._login.log_in(ask, host)

    def prepare(self, config: BrokerConfig) -> Callable[[], None] | None:
        """What takes a changed login module over; None if it is unchanged. Raises ConfigError."""
        mechanism = config[self._setting]
        before, after = self._config.listener(self._listener), config.listener(self._listener)
        if _jaas(before, mechanism) == _jaas(after, mechanism):
            return None
        login = _login_to(config, self._listener, self._setting, self._environment)

        def take() -> None:
            self._login, self._config = login, config
            _log.info("login_of_node_replaced listener=%s mechanism=%s", self._listener, mechanism)

        return take


def node_login(
    config: BrokerConfig, listener: str | None, setting: Setting[str], environment: Environment
) -> NodeLogin | None:
    """How this node logs in to nodes with this listener; None if the listener has no SASL. Raises ConfigError.

    `setting` is the mechanism: that between brokers, or that to controllers.
    """
    if listener is None or listener not in config.protocols or not config.listener(listener).uses_sasl:
        return None
    return NodeLogin(_login_to(config, listener, setting, environment), config, listener, setting, environment)


def _login_to(config: BrokerConfig, listener: str, setting: Setting[str], environment: Environment) -> SaslLogin:
    mechanism = config[setting]
    if mechanism not in sasl.MECHANISMS:
        raise ConfigError(
            f"{setting.name}={mechanism} is not supported: listener {listener} uses SASL; give one of "
            f"{', '.join(sasl.MECHANISMS)}",
            name=setting.name,
        )
    own = config.listener(listener)
    module = _login_module(own, mechanism)
    if mechanism == "OAUTHBEARER":
        return _token_login(own, module, environment)
    if mechanism == "GSSAPI":
        return _kerberos_login(own, environment)
    user, password = ("", "") if module is None else (module.options.get(n, "") for n in ("username", "password"))
    if not user or not password:
        name = _jaas_name(own, mechanism)
        raise ConfigError(
            f"{setting.name}={mechanism}: this node has no user for connections to listener {listener}; write {name}="
            f'org.apache.kafka.common.security.{_package(mechanism)} required username="NAME" password="PASSWORD";',
            name=name,
        )
    if mechanism == "PLAIN":
        return PlainLogin(user, password)
    return ScramLogin(SCRAM_MECHANISMS[mechanism], user, password, environment)


def _token_login(config: ListenerConfig, module: LoginModule | None, environment: Environment) -> SaslLogin:
    from millstream.node.security.jwks import check_url, file_of

    name = sasl.SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL.name
    url = config[sasl.SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL]
    if not url:
        raise ConfigError(
            f"this node has no token for connections to listener {config.name}: set {name}=file:///PATH, or to the "
            "address of a token service",
            name=name,
        )
    path = file_of(check_url(url, name=name, schemes=("https", "http", "file")))
    if path is not None:
        return OAuthBearerLogin(TokenSource(file=path), environment)
    if not is_private(url):
        raise ConfigError(f"{name}={url[:200]} is not allowed: the secret of this node needs https://", name=name)
    options = {} if module is None else module.options
    client_id = config[sasl.SASL_OAUTHBEARER_CLIENT_ID] or options.get("clientId")
    secret = config[sasl.SASL_OAUTHBEARER_CLIENT_SECRET] or options.get("clientSecret")
    if not client_id or not secret:
        missing = sasl.SASL_OAUTHBEARER_CLIENT_SECRET if client_id else sasl.SASL_OAUTHBEARER_CLIENT_ID
        raise ConfigError(f"{missing.name} is missing: {name} is a token service", name=missing.name)
    scope = config[sasl.SASL_OAUTHBEARER_SCOPE] or options.get("scope")
    return OAuthBearerLogin(
        TokenSource(endpoint=url, client_id=client_id, client_secret=secret, scope=scope), environment
    )


def _kerberos(config: ListenerConfig) -> "tuple[KerberosLogin, str]":
    """The Kerberos login of a listener, and the setting that it is from."""
    from millstream.node.security.kerberos import kerberos_login

    setting = _jaas_name(config, "GSSAPI")
    module = _login_module(config, "GSSAPI")
    if module is None:
        raise ConfigError(
            f"listener {config.name} has GSSAPI in sasl.enabled.mechanisms, which is the default, and no keytab: set "
            f"{LISTENER_PREFIX}{config.name.lower()}.sasl.enabled.mechanisms=SCRAM-SHA-512, for example, or {setting}="
            'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="/PATH" '
            'principal="kafka/HOST@REALM";',
            name=setting,
        )
    return kerberos_login(module.options, config[sasl.SASL_KERBEROS_SERVICE_NAME], name=setting), setting


def _kerberos_login(config: ListenerConfig, environment: Environment) -> SaslLogin:
    from millstream.node.security.kerberos import GssapiLogin

    login, setting = _kerberos(config)
    if not login.service_name:
        name = sasl.SASL_KERBEROS_SERVICE_NAME.name
        raise ConfigError(f"{name} is missing: this node connects to listener {config.name} by GSSAPI", name=name)
    return GssapiLogin(login, environment, name=setting)


def _package(mechanism: str) -> str:
    return "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"


def _jaas_name(config: ListenerConfig, mechanism: str) -> str:
    return f"{LISTENER_PREFIX}{config.name.lower()}.{mechanism.lower()}.{sasl.SASL_JAAS_CONFIG.name}"


def _jaas(config: ListenerConfig, mechanism: str) -> str | None:
    return config.mechanism(mechanism).own(sasl.SASL_JAAS_CONFIG)


def _login_module(config: ListenerConfig, mechanism: str) -> LoginModule | None:
    """The login module of a mechanism, whose class must be that of the mechanism."""
    text = _jaas(config, mechanism)
    if not text:
        return None
    name = _jaas_name(config, mechanism)
    module = parse_jaas(text, name=name)
    if module.class_name.rpartition(".")[2] not in _MODULES[mechanism]:
        raise ConfigError(
            f"{name}: {module.class_name} is not the login module of {mechanism}; write {_MODULES[mechanism][0]}",
            name=name,
        )
    return module


def _of_mechanism(config: ListenerConfig, mechanism: str, setting: Setting[int]) -> int:
    own = config.mechanism(mechanism).own(setting)
    return config[setting] if own is None else own


def _check_classes(config: ListenerConfig) -> None:
    """Classes of Java cannot be loaded. Those of Kafka whose work is done here are accepted, others refused."""
    for setting in (
        sasl.SASL_SERVER_CALLBACK_HANDLER_CLASS,
        sasl.SASL_LOGIN_CALLBACK_HANDLER_CLASS,
        sasl.SASL_OAUTHBEARER_JWT_VALIDATOR_CLASS,
    ):
        values = [config[setting], *(config.mechanism(name).own(setting) for name in sasl.MECHANISMS)]
        for value in values:
            if value and value not in sasl.ACCEPTED_CLASSES[setting.name]:
                raise ConfigError(
                    f"{setting.name}={value} of listener {config.name} is not supported: Java classes cannot be "
                    f"loaded; remove it. Accepted: {', '.join(sorted(sasl.ACCEPTED_CLASSES[setting.name]))}",
                    name=setting.name,
                )
