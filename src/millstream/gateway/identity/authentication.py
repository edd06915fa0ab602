"""Finds the caller of a request, by the mode of the gateway.

- open: every caller is admitted, with the gateway's own connection
- credentials: names, passwords and tokens of a file; all act with the gateway's own connection
- pass-through: the cluster decides. Each caller has its own connection with its own credentials
- sign-in only: no credentials are configured for programs (OpenID Connect alone); they are refused

The console takes sessions (`sessions.py`) in addition, if there is a sign-in.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from starlette.datastructures import Headers
from starlette.types import Scope

from millstream.access.rules_file import AccessRules
from millstream.gateway.http.audit import AUTHENTICATION, AUTHORIZATION, AuditTrail
from millstream.gateway.http.configuration import Credentials
from millstream.gateway.http.errors import ApiError
from millstream.gateway.identity.caller import Caller, Connection
from millstream.gateway.identity.credentials import (
    Credential,
    InvalidCredentialsError,
    certificate_credential,
    parse_authorization,
)
from millstream.gateway.identity.pool import CallerPool, RefusedCredentialError
from millstream.gateway.identity.sessions import COOKIE, PATH, ConsoleSession, ConsoleSessions, read_cookie
from millstream.gateway.identity.sign_in_delay import SignInDelay, TooManyAttemptsError

CERTIFICATE = "millstream.certificate"
"""In the scope: the subject of the client's certificate (RFC 4514), which the TLS layer has verified."""
SESSION = "millstream.session"
"""In the scope: the session of the console by which the caller was found."""


BASIC, BEARER, BY_CERTIFICATE, FORM, OIDC = "basic", "bearer", "certificate", "form", "oidc"
"""Methods of authentication."""


class UnauthenticatedError(Exception):
    """The credentials are missing or wrong."""


@dataclass(slots=True)
class Authentication:
    own: Connection
    """The gateway's own connection."""
    credentials: Credentials = field(default_factory=Credentials)
    mechanism: str | None = None
    """Of passwords in pass-through; None: another mode."""
    rules: AccessRules = field(default_factory=AccessRules)
    pool: CallerPool | None = None
    """With pass-through, or where sessions have credentials of their own."""
    trail: AuditTrail = field(default_factory=AuditTrail)
    """What is decided here is recorded there."""
    delay: SignInDelay = field(init=False)
    sessions: ConsoleSessions = field(default_factory=ConsoleSessions)
    schemas_topic: str = ""
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Checks of credentials by method and result: succeeded, failed, refused."""

    cluster_name: str = ""
    by_cluster: "dict[str, Authentication]" = field(default_factory=dict)
    """By name of the cluster, this one included. Empty: the console has one cluster."""

    def __post_init__(self) -> None:
        self.delay = SignInDelay(self.trail)

    def on_cluster(
        self, name: str, own: Connection, rules: AccessRules, pool: CallerPool, trail: AuditTrail
    ) -> "Authentication":
        """The same users, credentials and sessions for another cluster, which decides itself which users it accepts."""
        other = replace(self, cluster_name=name, own=own, rules=rules, pool=pool, trail=trail)
        other.delay = self.delay
        return other

    def at(self, path: str) -> "Authentication":
        """That of the cluster to which a page belongs; this one for all other paths."""
        return self.by_cluster.get(cluster_in(path) or "", self)

    @property
    def passes_through(self) -> bool:
        return self.mechanism is not None

    @property
    def has_sign_in(self) -> bool:
        """Whether the console has sign-in pages."""
        return self.passes_through or self.rules.oidc is not None

    @property
    def is_open(self) -> bool:
        return not (self.credentials or self.has_sign_in)

    @property
    def challenges(self) -> str:
        """The value of WWW-Authenticate."""
        return 'Basic realm="millstream", charset="UTF-8"' + (
            ', Bearer realm="millstream"' if self.passes_through else ""
        )

    async def caller(self, scope: Scope) -> Caller:
        """UnauthenticatedError after a delay if the credentials are wrong; ApiError if they cannot be verified."""
        if self.is_open:
            return self._known("", frozenset(), self.own, address_of_client(scope))
        headers = Headers(scope=scope)
        if self.has_sign_in and is_console(scope["path"]):
            session = self.sessions.find(read_cookie(headers.get("cookie", ""), COOKIE))
            if session is not None:
                scope[SESSION] = session
                return await self.caller_of_session(session, address_of_client(scope))
        header = headers.get("authorization", "")
        if len(headers.getlist("authorization")) > 1:
            raise UnauthenticatedError
        if self.credentials:
            return await self._by_file(header, scope)
        if not self.passes_through:
            raise UnauthenticatedError
        return await self._by_cluster(header, scope)

    async def caller_of_session(self, session: ConsoleSession, address: str) -> Caller:
        if session.credential is None:
            return self._known(session.user, session.groups, self.own, address)
        try:
            method = FORM if session.credential.token is None else OIDC
            return await self.verified(session.credential, address, method, session.groups, session.user)
        except UnauthenticatedError:
            if self.by_cluster:  # another cluster may accept it
                raise ApiError(
                    403,
                    f"the cluster {self.cluster_name} does not accept {session.user}",
                    "choose another cluster, or sign out and sign in as another user",
                    code=40301,
                ) from None
            self.sessions.end(session)
            raise

    async def verified(
        self, credential: Credential, address: str, method: str, groups: frozenset[str] = frozenset(), name: str = ""
    ) -> Caller:
        """The caller with this credential, if the cluster accepts it. `name`: the user that roles and masks know, if
        the sign-in has another name for it than the credential."""
        assert self.pool is not None, "only with pass-through and for sessions with credentials"
        if not self.pool.knows(credential):
            try:
                async with self.delay.attempt(address):
                    try:
                        connection = await self.pool.connection(credential)
                    except RefusedCredentialError as error:
                        self.counts[method, "failed"] += 1
                        await self.delay.after_failure(address, credential.name, method, str(error))
                        raise UnauthenticatedError from None
            except TooManyAttemptsError:
                self.counts[method, "refused"] += 1
                raise _too_many() from None
            self.counts[method, "succeeded"] += 1
            self.delay.succeeded(address, credential.name)
        else:
            connection = await self.pool.connection(credential)
        return self._known(name or credential.name, groups | credential.groups, connection, address, itself=True)

    async def _by_cluster(self, header: str, scope: Scope) -> Caller:
        assert self.mechanism is not None
        address = address_of_client(scope)
        try:
            credential = parse_authorization(header, self.mechanism, self.rules.tokens)
        except InvalidCredentialsError as error:
            await self._failed(_method_of(header), address, "", str(error))
            raise UnauthenticatedError from None
        method = _method_of(header)
        if credential is None:
            subject = scope.get(CERTIFICATE)
            rule = (
                next((each for each in self.rules.certificates if each.subject == subject), None) if subject else None
            )
            if rule is None:
                if subject:
                    reason = "the access file has no [[certificates]] for this subject"
                    self.trail.record_rarely(
                        AUTHENTICATION, "failure", subject, address, mechanism=BY_CERTIFICATE, reason=reason
                    )
                raise UnauthenticatedError
            credential, method = certificate_credential(rule, self.mechanism), BY_CERTIFICATE
        return await self.verified(credential, address, method)

    async def _by_file(self, header: str, scope: Scope) -> Caller:
        name = self.credentials.name_of(header)
        if name is not None:
            self.counts[_method_of(header), "succeeded"] += 1
            return self._known(name, frozenset(), self.own, address_of_client(scope))
        if header:
            claimed = self.credentials.claimed_name(header)
            await self._failed(_method_of(header), address_of_client(scope), claimed, "wrong credentials")
        raise UnauthenticatedError

    async def _failed(self, method: str, address: str, user: str, reason: str) -> None:
        try:
            async with self.delay.attempt(address):
                self.counts[method, "failed"] += 1
                await self.delay.after_failure(address, user, method, reason)
        except TooManyAttemptsError:
            self.counts[method, "refused"] += 1
            raise _too_many() from None

    def _known(
        self, name: str, groups: frozenset[str], connection: Connection, address: str, *, itself: bool = False
    ) -> Caller:
        rules = self.rules

        def note_masked(topic: str) -> None:
            self.trail.record_rarely(AUTHORIZATION, "masked", name, address, resource_type="TOPIC", resource_name=topic)

        return Caller(
            name,
            connection,
            groups,
            rules.roles.role_of(name, groups),
            rules.subjects.of(name, groups),
            rules.masking,
            acts_as_itself=itself,
            schemas_topic=self.schemas_topic,
            note_masked=note_masked,
        )


def _method_of(header: str) -> str:
    return BEARER if header[:6].lower() == "bearer" else BASIC


def is_console(path: str) -> bool:
    return path == PATH or path.startswith(f"{PATH}/")


def cluster_path(name: str) -> str:
    """The path of the pages of a cluster, if the console has several."""
    return f"{PATH}/clusters/{name}"


def cluster_in(path: str) -> str | None:
    """The name of the cluster in the path of a page; None: there is none."""
    below, _, rest = path.partition(f"{PATH}/clusters/")
    return rest.partition("/")[0] if not below and rest else None


def address_of_client(scope: Mapping[str, object]) -> str:
    client = scope.get("client")
    return str(client[0]) if isinstance(client, (tuple, list)) and client else "unknown"


def _too_many() -> ApiError:
    return ApiError(
        429, "too many failed sign-ins", "wait, then check name and password", code=42902, headers={"Retry-After": "5"}
    )
