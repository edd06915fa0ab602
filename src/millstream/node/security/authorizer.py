"""The authorizer of a node, with the rules of Kafka's StandardAuthorizer: settings, the ACLs of the image, decisions.

`authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer` switches it on. The rules are in
`core/acls.py`. Here the ACLs of the committed metadata become a table, once for each change, and a connection keeps
what it may do until that table changes. Which API needs what is in `api_checks.py`.
"""

import logging
from collections.abc import Callable

from millstream.config.broker_config import BrokerConfig
from millstream.config.setting import ConfigError
from millstream.config.table import authorization
from millstream.formats.model.access_control import AclOperation, AclResourceType, Principal, parse_principal
from millstream.node.metadata.image import MetadataDelta, MetadataImage
from millstream.node.security.core.acls import Access, AclTable, AuthorizerSettings
from millstream.node.server.auditing import Auditor, NoAuditor
from millstream.node.server.authorization import NO_AUTHORIZER, Authorizer
from millstream.node.server.limits import LogThrottle
from millstream.node.server.service import Peer

_log = logging.getLogger("millstream.authorizer")
_log.addFilter(LogThrottle())

Denied = Callable[[Peer, AclOperation, AclResourceType, str], None]


def authorizer_settings(config: BrokerConfig) -> AuthorizerSettings:
    """The settings of the authorizer. Raises ConfigError for a super user that is not `TYPE:NAME`."""
    users: list[Principal] = []
    for text in config[authorization.SUPER_USERS].split(";"):
        if not text.strip():
            continue
        try:
            users.append(parse_principal(text.strip()))
        except ValueError as error:
            raise ConfigError(f"super.users: {error}", name="super.users") from None
    return AuthorizerSettings(frozenset(users), config[authorization.ALLOW_EVERYONE_IF_NO_ACL_FOUND])


class _Kept:
    """The access of a connection, and what it was made of."""

    __slots__ = ("access", "groups", "principal", "table")

    def __init__(self, table: AclTable, principal: Principal, groups: tuple[Principal, ...], access: Access) -> None:
        self.table = table
        self.principal = principal
        self.groups = groups
        self.access = access


class StandardAuthorizer:
    is_enabled = True

    def __init__(self, settings: AuthorizerSettings) -> None:
        self._settings = settings
        self._table = AclTable((), settings)
        self.auditor: Auditor = NoAuditor()
        self.on_denied: Denied = self._note_denied
        """Called for every operation that is refused."""

    def _note_denied(self, peer: Peer, operation: AclOperation, resource: AclResourceType, name: str) -> None:
        _log_denied(peer, operation, resource, name)
        self.auditor.denied(peer, operation, resource, name)

    def use(self, image: MetadataImage) -> None:
        """Takes the ACLs of an image over."""
        self._table = AclTable(image.acls.values(), self._settings)

    def follow(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if delta.acls_changed:
            self.use(image)

    def access(self, peer: Peer) -> Access:
        """What the client may do. A connection keeps it while ACLs and principal are the same."""
        kept = peer.access
        if (
            type(kept) is _Kept
            and kept.table is self._table
            and kept.principal is peer.principal
            and kept.groups is peer.groups
        ):
            return kept.access
        found = self._table.access((peer.principal, *peer.groups), peer.host)
        peer.access = _Kept(self._table, peer.principal, peer.groups, found)
        return found

    def allows(self, peer: Peer, operation: AclOperation, resource: AclResourceType, name: str) -> bool:
        if peer.is_node or self.access(peer).allows(operation, resource, name):
            return True
        self.on_denied(peer, operation, resource, name)
        return False

    def sees(self, peer: Peer, operation: AclOperation, resource: AclResourceType, name: str) -> bool:
        return peer.is_node or self.access(peer).allows(operation, resource, name)

    def allows_some(self, peer: Peer, operation: AclOperation, resource: AclResourceType) -> bool:
        return peer.is_node or self.access(peer).allows_some(operation, resource)

    def operations(self, peer: Peer, resource: AclResourceType, name: str) -> int:
        if peer.is_node:
            return NO_AUTHORIZER.operations(peer, resource, name)
        return self.access(peer).operations(resource, name)

    def rights(self, peer: Peer) -> Access | None:
        return None if peer.is_node else self.access(peer)


def open_authorizer(config: BrokerConfig) -> "StandardAuthorizer | None":
    """The authorizer by the settings; None if there is none."""
    return StandardAuthorizer(authorizer_settings(config)) if config[authorization.AUTHORIZER_CLASS_NAME] else None


def or_none(authorizer: "StandardAuthorizer | None") -> Authorizer:
    return NO_AUTHORIZER if authorizer is None else authorizer


def _log_denied(peer: Peer, operation: AclOperation, resource: AclResourceType, name: str) -> None:
    _log.info(
        "denied principal=%s host=%s operation=%s resource=%s:%s", peer.principal, peer.host, operation.name,
        resource.name, name,
    )  # fmt: skip
