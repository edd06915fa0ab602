"""Settings of SASL: mechanisms, logins between nodes, tokens. Most of them may be set for one listener.

`sasl.jaas.config` is the text of `config/jaas.py`.
"""

from millstream.config.setting import (
    Importance,
    Setting,
    SettingType,
    Update,
    at_least,
    between,
    declared,
    integer,
    listed,
    long,
    optional_class,
    optional_string,
    string,
)

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
"""The mechanisms that are supported. GSSAPI needs the extra `millstream[gssapi]`."""


def _secret(name: str, explanation: str, update: Update = Update.RESTART) -> Setting[str | None]:
    return Setting(
        name=name, type=SettingType.PASSWORD, default=None, nullable=True, explanation=explanation, update=update
    )


SASL_ENABLED_MECHANISMS = listed(
    "sasl.enabled.mechanisms",
    ("GSSAPI",),
    "The SASL mechanisms of a listener: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI (Kerberos). GSSAPI "
    "needs `pip install 'millstream[gssapi]'`.",
)
SASL_JAAS_CONFIG = _secret(
    "sasl.jaas.config",
    "The login module of a listener and mechanism, as `listener.name.<listener>.<mechanism>.sasl.jaas.config`. With "
    'PLAIN it has the users of the listener (`user_NAME="PASSWORD"`). With every mechanism it has the user of this '
    "node for connections to other nodes (`username`, `password`). A change applies to logins from then on.",
    Update.PER_BROKER,
)
SASL_SERVER_MAX_RECEIVE_SIZE = integer(
    "sasl.server.max.receive.size",
    512 << 10,
    "The maximum size of a request before the client is authenticated.",
    unit="bytes",
    allowed=at_least(1),
)
CONNECTIONS_MAX_REAUTH_MS = long(
    "connections.max.reauth.ms",
    0,
    "The maximum time between two authentications of a connection (KIP-368). A client that does not authenticate again "
    "in time is disconnected at its next request. 0: no limit, except the end of a token.",
    unit="ms",
)
CONNECTION_FAILED_AUTHENTICATION_DELAY_MS = integer(
    "connection.failed.authentication.delay.ms",
    100,
    "The delay of the response to a failed authentication, which slows down the guessing of passwords.",
    unit="ms",
    allowed=between(0, 60_000),
    importance=Importance.LOW,
)
LOGIN_TIMEOUT_MS = integer(
    "millstream.sasl.login.timeout.ms",
    30_000,
    "The maximum time of a login on a SASL listener. A connection that is not authenticated by then is closed, "
    "whatever it sends.",
    unit="ms",
    allowed=between(100, 600_000),
    importance=Importance.LOW,
)
SASL_MECHANISM_INTER_BROKER_PROTOCOL = string(
    "sasl.mechanism.inter.broker.protocol",
    "GSSAPI",
    "The SASL mechanism with which this broker authenticates to other brokers.",
)
SASL_MECHANISM_CONTROLLER_PROTOCOL = string(
    "sasl.mechanism.controller.protocol",
    "GSSAPI",
    "The SASL mechanism with which this node authenticates to controllers. With SCRAM, the credential must be in the "
    "metadata log from its first record on: see `millstream serve --bootstrap-user`.",
    importance=Importance.HIGH,
)
SASL_OAUTHBEARER_JWKS_ENDPOINT_URL = optional_string(
    "sasl.oauthbearer.jwks.endpoint.url",
    "The public keys with which tokens are verified (JWKS), as an address (`https://…`, `http://…`) or a file "
    "(`file:///…`). OAUTHBEARER needs it: tokens without a signature are never accepted.",
)
SASL_OAUTHBEARER_JWKS_ENDPOINT_REFRESH_MS = long(
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    3_600_000,
    "The time between two reads of the public keys. A token with an unknown key causes an earlier one.",
    unit="ms",
    allowed=at_least(1000),
    importance=Importance.LOW,
)
SASL_OAUTHBEARER_JWKS_ENDPOINT_RETRY_BACKOFF_MS = long(
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    100,
    "The first pause after the public keys could not be read. It is doubled with each failure.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.LOW,
)
SASL_OAUTHBEARER_JWKS_ENDPOINT_RETRY_BACKOFF_MAX_MS = long(
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    10_000,
    "The longest pause after the public keys could not be read.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.LOW,
)
SASL_OAUTHBEARER_EXPECTED_ISSUER = optional_string(
    "sasl.oauthbearer.expected.issuer",
    "The issuer (claim `iss`) of tokens. Without it, tokens of any issuer whose key is known are accepted.",
    importance=Importance.LOW,
)
SASL_OAUTHBEARER_EXPECTED_AUDIENCE = listed(
    "sasl.oauthbearer.expected.audience",
    (),
    "The audiences (claim `aud`) of tokens; one of them must be in a token. Without it, any audience is accepted.",
    importance=Importance.LOW,
)
SASL_OAUTHBEARER_CLOCK_SKEW_SECONDS = integer(
    "sasl.oauthbearer.clock.skew.seconds",
    30,
    "The tolerated difference between the clocks of this node and of the issuer.",
    unit="s",
    allowed=between(0, 3600),
    importance=Importance.LOW,
)
SASL_OAUTHBEARER_SUB_CLAIM_NAME = string(
    "sasl.oauthbearer.sub.claim.name",
    "sub",
    "The claim with the name of the user.",
    importance=Importance.LOW,
)
SASL_OAUTHBEARER_SCOPE_CLAIM_NAME = string(
    "sasl.oauthbearer.scope.claim.name",
    "scope",
    "The claim with the scopes of a token. As in Kafka, scopes give no rights.",
    importance=Importance.LOW,
)
OAUTHBEARER_GROUPS_CLAIM_NAME = optional_string(
    "millstream.sasl.oauthbearer.groups.claim.name",
    "The claim with the groups of a user, as text or a list. Each one becomes a principal `Group:NAME`, to which ACLs "
    "can be given.",
    importance=Importance.LOW,
)
SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL = optional_string(
    "sasl.oauthbearer.token.endpoint.url",
    "Where this node gets the token with which it authenticates to other nodes: a file (`file:///…`), which is read at "
    "each login, or a token service (`https://…`, on this machine also `http://…`), with the grant of client "
    "credentials.",
)
SASL_OAUTHBEARER_CLIENT_ID = optional_string(
    "sasl.oauthbearer.client.credentials.client.id",
    "The client id of this node at the token service; or `clientId` in `sasl.jaas.config`.",
)
SASL_OAUTHBEARER_CLIENT_SECRET = _secret(
    "sasl.oauthbearer.client.credentials.client.secret",
    "The secret of this node at the token service; or `clientSecret` in `sasl.jaas.config`.",
)
SASL_OAUTHBEARER_SCOPE = optional_string(
    "sasl.oauthbearer.scope",
    "The scope that this node requests from the token service; or `scope` in `sasl.jaas.config`.",
)
SASL_KERBEROS_SERVICE_NAME = optional_string(
    "sasl.kerberos.service.name",
    "The name of the Kerberos service of the brokers, the first part of their principals (`kafka`); or `serviceName` "
    "in `sasl.jaas.config`. It is needed for connections to other nodes by GSSAPI.",
)
SASL_KERBEROS_PRINCIPAL_TO_LOCAL_RULES = listed(
    "sasl.kerberos.principal.to.local.rules",
    ("DEFAULT",),
    "Rules from Kerberos principals to users; the first one that applies decides. `DEFAULT`: the first part of "
    "principals of the default realm. `RULE:[n:text](pattern)s/from/to/g/L` for those of n parts. Patterns are those "
    "of RE2.",
)
_HANDLERS = "org.apache.kafka.common.security.oauthbearer."
SASL_SERVER_CALLBACK_HANDLER_CLASS = optional_class(
    "sasl.server.callback.handler.class",
    "Only Kafka's handler for OAUTHBEARER is accepted, `OAuthBearerValidatorCallbackHandler`, which is what this node "
    "does without the setting too.",
)
SASL_LOGIN_CALLBACK_HANDLER_CLASS = optional_class(
    "sasl.login.callback.handler.class",
    "Only Kafka's handler for OAUTHBEARER is accepted, `OAuthBearerLoginCallbackHandler`.",
)
SASL_OAUTHBEARER_JWT_VALIDATOR_CLASS = optional_class(
    "sasl.oauthbearer.jwt.validator.class",
    "Only Kafka's `DefaultJwtValidator` and `BrokerJwtValidator` are accepted: this node checks tokens as they do.",
)
ACCEPTED_CLASSES: dict[str, frozenset[str]] = {
    SASL_SERVER_CALLBACK_HANDLER_CLASS.name: frozenset(
        (
            f"{_HANDLERS}OAuthBearerValidatorCallbackHandler",
            f"{_HANDLERS}secured.OAuthBearerValidatorCallbackHandler",
        )
    ),
    SASL_LOGIN_CALLBACK_HANDLER_CLASS.name: frozenset(
        (f"{_HANDLERS}OAuthBearerLoginCallbackHandler", f"{_HANDLERS}secured.OAuthBearerLoginCallbackHandler")
    ),
    SASL_OAUTHBEARER_JWT_VALIDATOR_CLASS.name: frozenset(
        (f"{_HANDLERS}DefaultJwtValidator", f"{_HANDLERS}BrokerJwtValidator")
    ),
}
"""The values of settings that name a class: those of Kafka whose work this node does itself."""
DELEGATION_TOKEN_SECRET_KEY = _secret(
    "delegation.token.secret.key",
    "The secret of delegation tokens, equal on all brokers and controllers. Without it there are no tokens. Another "
    "secret makes existing tokens invalid.",
)
DELEGATION_TOKEN_MAX_LIFETIME_MS = long(
    "delegation.token.max.lifetime.ms",
    7 * 24 * 3_600_000,
    "The maximum lifetime of a delegation token.",
    unit="ms",
    allowed=at_least(1),
)
DELEGATION_TOKEN_EXPIRY_TIME_MS = long(
    "delegation.token.expiry.time.ms",
    24 * 3_600_000,
    "The time until a delegation token must be renewed.",
    unit="ms",
    allowed=at_least(1),
)
DELEGATION_TOKEN_EXPIRY_CHECK_INTERVAL_MS = long(
    "delegation.token.expiry.check.interval.ms",
    3_600_000,
    "The time between two removals of expired delegation tokens. A token that has expired is refused before too.",
    unit="ms",
    allowed=at_least(1),
    importance=Importance.LOW,
)

SETTINGS = declared(globals())
