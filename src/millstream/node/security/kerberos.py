"""SASL GSSAPI (Kerberos, RFC 4752): logins of clients, and of this node to other nodes.

The library is the optional extra `millstream[gssapi]`, on the system's Kerberos; its settings are in `krb5.conf`
(`KRB5_CONFIG`). Every step runs in a thread: a client asks the KDC, a server reads its keytab and writes the cache of
used tickets. A keytab that changes is taken over at the next login. After the login nothing is encrypted by Kerberos,
as in Kafka: use SASL_SSL. From principals to users: `core/kerberos_names.py`.
"""

import asyncio
import importlib
import os
import secrets
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from millstream.common.lazy_dataclass import dataclass
from millstream.config.setting import ConfigError
from millstream.node.environment import Environment
from millstream.node.security.core.kerberos_names import KerberosNameError, KerberosNames, parse_kerberos_principal
from millstream.node.security.core.sasl import Authenticated, AuthenticationError, Challenge
from millstream.node.security.sasl_client import Conversation, LoginFailedError, OneThread, converse
from millstream.node.server.channel import Ask

_NO_LAYER = 1
_LAYERS = bytes((_NO_LAYER, 0, 0, 0))
"""The only security layer that is offered: none. The other bytes are the size of messages, which there are none of."""
_LONGEST_CHOICE = 4096
_STEPS_AT_ONCE = 4


def _library(name: str) -> Any:
    try:
        return importlib.import_module("gssapi")
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"{name}: GSSAPI needs the Kerberos library, which cannot be loaded ({error}): run pip install "
            "'millstream[gssapi]' (on Debian after apt-get install libkrb5-dev), or choose another mechanism",
            name=name,
        ) from None


@dataclass(frozen=True, slots=True)
class KerberosLogin:
    """The options of a Krb5LoginModule."""

    keytab: str
    principal: str
    service_name: str | None


def kerberos_login(options: Mapping[str, str], service_name: str | None, *, name: str) -> KerberosLogin:
    """The options, checked; raises ConfigError."""
    keytab, principal = options.get("keyTab"), options.get("principal")
    example = (
        f'{name}=com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true keyTab="/PATH" '
        'principal="kafka/HOST@REALM";'
    )
    if options.get("useKeyTab", "").lower() != "true" or not keytab or not principal:
        raise ConfigError(f"GSSAPI needs a keytab and a principal: write {example}", name=name)
    try:
        parse_kerberos_principal(principal)
    except KerberosNameError as error:
        raise ConfigError(f"{name}: {error}", name=name) from None
    path = keytab.removeprefix("file:").removeprefix("FILE:")
    if not os.path.isabs(path) or not os.access(path, os.R_OK):
        raise ConfigError(f"{name}: the keytab {path} cannot be read; give the absolute path of a file", name=name)
    own = options.get("serviceName")
    if own and service_name and own != service_name:
        raise ConfigError(
            f"{name}: serviceName={own} and sasl.kerberos.service.name={service_name} differ: remove one", name=name
        )
    return KerberosLogin(path, principal, own or service_name)


class KerberosAcceptor:
    """What a listener needs to accept logins: the key of its service, and the rules for names."""

    def __init__(self, login: KerberosLogin, rules: tuple[str, ...], environment: Environment, *, name: str) -> None:
        """Raises ConfigError: no library, no key of the principal in the keytab, rules that are not valid."""
        gssapi = self.library = _library(name)
        self._offload = environment.offload
        self._turns = asyncio.Semaphore(_STEPS_AT_ONCE)
        try:
            principal = gssapi.Name(login.principal, gssapi.NameType.kerberos_principal)
            self.credentials = gssapi.Credentials(
                name=principal,
                usage="accept",
                mechs=[gssapi.MechType.kerberos],
                store={"keytab": f"FILE:{login.keytab}"},
            )
            anyone = gssapi.Name("any", gssapi.NameType.user).canonicalize(gssapi.MechType.kerberos)
        except gssapi.exceptions.GSSError as error:
            raise ConfigError(
                f"{name}: {login.principal} cannot accept logins with the keytab {login.keytab}: {error}", name=name
            ) from None
        try:
            self.names = KerberosNames(rules, str(anyone).rpartition("@")[2])
        except KerberosNameError as error:
            setting = "sasl.kerberos.principal.to.local.rules"
            raise ConfigError(f"{setting}: {error}", name=setting) from None

    async def run(self, step: Callable[[], Challenge | Authenticated]) -> Challenge | Authenticated:
        """Runs a step of a login in a thread. Clients that have not logged in yet have only some of the threads."""
        async with self._turns:
            return await self._offload(step)


class _Stage(Enum):
    CONTEXT = "tickets"
    OFFER = "offer of security layers"
    CHOICE = "choice of a security layer"


class GssapiServer:
    """The server's side of one login."""

    def __init__(self, acceptor: KerberosAcceptor) -> None:
        self._acceptor = acceptor
        self._context: Any = None
        self._stage = _Stage.CONTEXT

    async def step(self, message: bytes) -> Challenge | Authenticated:
        return await self._acceptor.run(lambda: self._step(message))

    def _step(self, message: bytes) -> Challenge | Authenticated:
        gssapi = self._acceptor.library
        try:
            if self._stage is _Stage.CONTEXT:
                return self._accept(message)
            if self._stage is _Stage.OFFER:
                if message:
                    raise AuthenticationError("an empty message is expected after the tickets")
                return self._offer()
            if len(message) > _LONGEST_CHOICE:
                raise AuthenticationError("the choice of a security layer is too long")
            return self._chosen(bytes(self._context.unwrap(message).message))
        except gssapi.exceptions.GSSError as error:
            raise AuthenticationError(f"Kerberos: {error}") from None

    def _accept(self, message: bytes) -> Challenge:
        if not message:
            raise AuthenticationError("the first message is empty: the client has no ticket")
        if self._context is None:
            self._context = self._acceptor.library.SecurityContext(creds=self._acceptor.credentials, usage="accept")
        token = self._context.step(message)
        if self._context.complete:
            if not token:
                return self._offer()
            self._stage = _Stage.OFFER
        return Challenge(bytes(token or b""))

    def _offer(self) -> Challenge:
        self._stage = _Stage.CHOICE
        return Challenge(bytes(self._context.wrap(_LAYERS, False).message))

    def _chosen(self, choice: bytes) -> Authenticated:
        if len(choice) < len(_LAYERS) or choice[0] != _NO_LAYER:
            raise AuthenticationError("the client wants a security layer of Kerberos, which is not offered")
        principal = str(self._context.initiator_name)
        try:
            authorization_id = choice[len(_LAYERS) :].decode()
            if authorization_id and authorization_id != principal:
                raise AuthenticationError(f"{principal} requested another authorization id")
            return Authenticated(b"", self._acceptor.names.user(principal))
        except (UnicodeDecodeError, KerberosNameError) as error:
            raise AuthenticationError(str(error)) from None


class GssapiLogin:
    """The login of this node to others: to the service `kafka/HOST` of each."""

    def __init__(self, login: KerberosLogin, environment: Environment, *, name: str) -> None:
        self._login = login
        self._offload = OneThread(environment)
        self._library = _library(name)
        # Tickets stay in memory. The library gets new ones from the keytab before they end.
        self._cache = f"MEMORY:millstream-{secrets.token_hex(8)}"

    async def log_in(self, ask: Ask, host: str) -> float | None:
        what = f"SASL GSSAPI as {self._login.principal} to {self._login.service_name}@{host}"
        try:
            return await converse(ask, "GSSAPI", what, self._conversation(host), self._offload)
        except self._library.exceptions.GSSError as error:
            raise LoginFailedError(f"{what}: {error}") from None

    def _conversation(self, host: str) -> Conversation:
        gssapi, login = self._library, self._login
        credentials = gssapi.Credentials(
            name=gssapi.Name(login.principal, gssapi.NameType.kerberos_principal),
            usage="initiate",
            store={"client_keytab": f"FILE:{login.keytab}", "ccache": self._cache},
        )
        context = gssapi.SecurityContext(
            name=gssapi.Name(f"{login.service_name}@{host}", gssapi.NameType.hostbased_service),
            creds=credentials,
            usage="initiate",
            mech=gssapi.MechType.kerberos,
            flags=gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity,
        )
        response = yield bytes(context.step() or b"")
        while not context.complete:
            response = yield bytes(context.step(response) or b"")
        offer = bytes(context.unwrap(response).message)
        if len(offer) < len(_LAYERS) or not offer[0] & _NO_LAYER:
            raise LoginFailedError("the other node requires a security layer of Kerberos")
        yield bytes(context.wrap(_LAYERS, False).message)
