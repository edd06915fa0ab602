"""A secured simulated cluster: SASL_SSL for clients, mutual TLS between nodes, and ACLs. No client may be refused.

The administrator has a password in the settings of the nodes (PLAIN) and is a super user. All other clients are SCRAM
users in the metadata, with exactly the ACLs that they need (`clients/permissions.py`). A login that fails, and a
response with an authorization error, is a violation, whatever has happened to the nodes.
"""

from collections.abc import Callable

from millstream.formats.model.errors import ErrorCode
from millstream.formats.protocol.schema import Message
from millstream.node.security.core.scram import SCRAM_MECHANISMS
from millstream.node.security.sasl_client import LoginFailedError, PlainLogin, SaslLogin, ScramLogin
from millstream.node.server.channel import Ask
from millstream.simulator.certificates import NODE_NAME, tls_settings
from millstream.simulator.machine import Process

ADMINISTRATOR = "admin"
MECHANISM = SCRAM_MECHANISMS["SCRAM-SHA-512"]
REFUSALS = frozenset(
    (
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.ILLEGAL_SASL_STATE,
    )
)
_INVARIANT = "NoAllowedClientIsRefused"
_PASSWORD = "of the administrator"
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"

Report = Callable[[str, str], None]
"""Reports a violation: the name of the invariant, and a description."""


def secured_settings() -> dict[str, str]:
    """The settings of every node."""
    settings = tls_settings() | {
        "listener.security.protocol.map": "CLIENT:SASL_SSL,NODES:SSL,CONTROLLER:SSL",
        "inter.broker.listener.name": "NODES",
        "listener.name.client.ssl.client.auth": "none",
        "listener.name.client.sasl.enabled.mechanisms": f"PLAIN,{MECHANISM.name}",
        "listener.name.client.plain.sasl.jaas.config": f'{_PLAIN_MODULE} required user_{ADMINISTRATOR}="{_PASSWORD}";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{ADMINISTRATOR};User:CN={NODE_NAME}",
    }
    del settings["security.inter.broker.protocol"]  # the listener is named instead
    return settings


def password(user: str) -> str:
    return f"of {user}"


class Watch:
    """The login of one simulated client, and a look at each response to it."""

    def __init__(self, process: Process, report: Report) -> None:
        self._user = process.machine.name
        self._report = report
        self._login: SaslLogin
        if self._user == ADMINISTRATOR:
            self._login = PlainLogin(ADMINISTRATOR, _PASSWORD)
        else:
            self._login = ScramLogin(MECHANISM, self._user, password(self._user), process.environment)

    async def log_in(self, ask: Ask, host: str) -> float | None:
        try:
            return await self._login.log_in(ask, host)
        except LoginFailedError as error:
            self._report(_INVARIANT, f"{self._user} could not log in: {error}")
            raise

    def look_at(self, api: str, response: Message) -> None:
        code = _refusal(response)
        if code is not None:
            self.look_at_error(api, code)

    def look_at_error(self, api: str, error: ErrorCode) -> None:
        if error in REFUSALS:
            self._report(_INVARIANT, f"{api} of {self._user} was refused: {error.name}")


def _refusal(message: Message) -> ErrorCode | None:
    """The first authorization error anywhere in a response."""
    for name in message.__slots__:
        value = getattr(message, name)
        if isinstance(value, int):
            if value in REFUSALS and name.endswith("error_code"):
                return ErrorCode(value)
        elif isinstance(value, Message | list):
            for each in value if isinstance(value, list) else (value,):
                if isinstance(each, Message) and (found := _refusal(each)) is not None:
                    return found
    return None
