"""The access file of the gateway: roles, masks, permissions on subjects, certificates, OpenID Connect, claims. TOML.

Unknown names and wrong values are errors that say where: a rule with a spelling mistake must not be silently open.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from millstream.access.masking import Masking, MaskRule, parse_path
from millstream.access.roles import Role, RoleRules, parse_role
from millstream.access.subjects import SubjectOperation, SubjectRule, SubjectRules
from millstream.common.lazy_dataclass import dataclass

T = TypeVar("T")
SIGNING_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Asymmetric only: with a symmetric algorithm, a client that can check a token can make one."""


class AccessFileError(ValueError):
    """The access file cannot be used; the text says where and why."""


@dataclass(frozen=True, slots=True)
class CertificateRule:
    """A client certificate, by its exact subject, and the credentials with which its owner is connected."""

    subject: str
    """RFC 4514, as `openssl x509 -noout -subject -nameopt RFC2253` prints it."""
    username: str
    password: str = field(repr=False)
    mechanism: str = ""
    """Empty: that of the gateway's pass-through."""


@dataclass(frozen=True, slots=True)
class OidcSettings:
    issuer: str
    client_id: str
    client_secret: str = field(default="", repr=False)
    """Empty: a public client, protected by PKCE alone."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    user_claim: str = "sub"
    groups_claim: str = "groups"
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    uses_token: bool = False
    """Pages act with the access token of the user (OAUTHBEARER) instead of the gateway's own connection."""


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """The claims of bearer tokens by which roles, masks and permissions on subjects are given. They must be those that
    the cluster uses (`sasl.oauthbearer.sub.claim.name`, `millstream.sasl.oauthbearer.groups.claim.name`)."""

    user: str = "sub"
    groups: str = "groups"


@dataclass(frozen=True, slots=True)
class AccessRules:
    roles: RoleRules = field(default_factory=RoleRules)
    masking: Masking = field(default_factory=Masking)
    subjects: SubjectRules = field(default_factory=SubjectRules)
    certificates: tuple[CertificateRule, ...] = ()
    oidc: OidcSettings | None = None
    tokens: TokenClaims = field(default_factory=TokenClaims)


def parse_rules(text: str) -> AccessRules:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise AccessFileError(f"it is not TOML: {error}") from None
    _known("", document, ("roles", "masks", "subjects", "certificates", "oidc", "tokens"))
    return AccessRules(
        roles=_roles(_table("roles", document.get("roles", {}))),
        masking=Masking(tuple(_mask(f"masks[{n}]", row) for n, row in enumerate(_rows("masks", document)))),
        subjects=SubjectRules(
            tuple(_subject_rule(f"subjects[{n}]", row) for n, row in enumerate(_rows("subjects", document)))
            if "subjects" in document
            else None
        ),
        certificates=tuple(
            _certificate(f"certificates[{n}]", row) for n, row in enumerate(_rows("certificates", document))
        ),
        oidc=_oidc(_table("oidc", document["oidc"])) if "oidc" in document else None,
        tokens=_tokens(_table("tokens", document.get("tokens", {}))),
    )


def _roles(table: Mapping[str, Any]) -> RoleRules:
    _known("roles", table, ("users", "groups", "default"))
    users = {
        name: _read("roles.users", parse_role, role)
        for name, role in _table("roles.users", table.get("users", {})).items()
    }
    groups = {
        name: _read("roles.groups", parse_role, role)
        for name, role in _table("roles.groups", table.get("groups", {})).items()
    }
    default = _read("roles.default", parse_role, table.get("default", "none" if users or groups else "admin"))
    return RoleRules(users, groups, default)


def _mask(where: str, row: Mapping[str, Any]) -> MaskRule:
    _known(where, row, ("topics", "fields", "visible_to", "visible_to_users"))
    visible_to = _read(f"{where}.visible_to", parse_role, row.get("visible_to", "admin"))
    if visible_to is Role.NONE:
        raise AccessFileError(
            f"{where}.visible_to: the rule has no effect without a role: give viewer, operator or admin"
        )
    return MaskRule(
        topics=_texts(f"{where}.topics", row.get("topics")),
        paths=tuple(
            _read(f"{where}.fields", parse_path, path) for path in _texts(f"{where}.fields", row.get("fields"))
        ),
        visible_to=visible_to,
        visible_to_users=frozenset(_texts(f"{where}.visible_to_users", row.get("visible_to_users", []), empty=True)),
    )


def _subject_rule(where: str, row: Mapping[str, Any]) -> SubjectRule:
    _known(where, row, ("principals", "subjects", "operations"))
    principals = _texts(f"{where}.principals", row.get("principals"))
    for name in principals:
        if name != "*" and not name.startswith(("User:", "Group:")):
            raise AccessFileError(f"{where}.principals: {name!r}: write User:NAME, Group:NAME, or *")
    names = {operation.name.lower(): operation for operation in SubjectOperation}
    operations = _texts(f"{where}.operations", row.get("operations", ["read"]))
    for name in operations:
        if name not in names:
            raise AccessFileError(f"{where}.operations: {name!r} is unknown: give {', '.join(names)}")
    return SubjectRule(
        principals, _texts(f"{where}.subjects", row.get("subjects")), frozenset(names[name] for name in operations)
    )


def _certificate(where: str, row: Mapping[str, Any]) -> CertificateRule:
    _known(where, row, ("subject", "username", "password", "mechanism"))
    values = {name: _text(f"{where}.{name}", row.get(name)) for name in ("subject", "username", "password")}
    return CertificateRule(**values, mechanism=_text(f"{where}.mechanism", row.get("mechanism", ""), empty=True))


def _oidc(table: Mapping[str, Any]) -> OidcSettings:
    names = ("issuer", "client_id", "client_secret", "scopes", "user_claim", "groups_claim", "algorithms", "connection")
    _known("oidc", table, names)
    algorithms = _texts("oidc.algorithms", table.get("algorithms", ["RS256", "ES256"]))
    for name in algorithms:
        if name not in SIGNING_ALGORITHMS:
            raise AccessFileError(f"oidc.algorithms: {name!r}: give some of {', '.join(SIGNING_ALGORITHMS)}")
    connection = _text("oidc.connection", table.get("connection", "gateway"))
    if connection not in ("gateway", "token"):
        raise AccessFileError(f"oidc.connection: {connection!r}: give gateway or token")
    issuer = _text("oidc.issuer", table.get("issuer"))
    if not _is_safe_address(issuer):
        raise AccessFileError(f"oidc.issuer: {issuer!r}: give an https:// address")
    scopes = _texts("oidc.scopes", table.get("scopes", ["openid", "profile", "email"]))
    return OidcSettings(
        issuer=issuer,
        client_id=_text("oidc.client_id", table.get("client_id")),
        client_secret=_text("oidc.client_secret", table.get("client_secret", ""), empty=True),
        scopes=scopes if "openid" in scopes else ("openid", *scopes),
        user_claim=_text("oidc.user_claim", table.get("user_claim", "sub")),
        groups_claim=_text("oidc.groups_claim", table.get("groups_claim", "groups")),
        algorithms=algorithms,
        uses_token=connection == "token",
    )


def _is_safe_address(address: str) -> bool:
    """With TLS, or on this machine."""
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
    except ValueError:
        return False
    local = host in ("127.0.0.1", "localhost", "::1")
    return bool(host) and parts.username is None and (parts.scheme == "https" or (parts.scheme == "http" and local))


def _tokens(table: Mapping[str, Any]) -> TokenClaims:
    _known("tokens", table, ("user_claim", "groups_claim"))
    return TokenClaims(
        _text("tokens.user_claim", table.get("user_claim", "sub")),
        _text("tokens.groups_claim", table.get("groups_claim", "groups")),
    )


def _known(where: str, table: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in table:
        if name not in names:
            place = f"{where}.{name}" if where else name
            raise AccessFileError(f"{place} is unknown: give {', '.join(names)}")


def _table(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise AccessFileError(f"{where} must be a table")
    return value


def _rows(name: str, document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows = document.get(name, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise AccessFileError(f"{name} must be a list of tables: write [[{name}]]")
    return rows


def _text(where: str, value: Any, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty):
        raise AccessFileError(f"{where} must be a text")
    return value


def _texts(where: str, value: Any, *, empty: bool = False) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value) or not (value or empty):
        raise AccessFileError(f"{where} must be a list of texts")
    return tuple(value)


def _read(where: str, parse: Callable[[Any], T], value: Any) -> T:
    try:
        return parse(value)
    except ValueError as error:
        raise AccessFileError(f"{where}: {error}") from None
