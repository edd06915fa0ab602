"""The interface between handlers and the authorizer: may this client do this?

Handlers call it with names as the request has them. The ACLs and their rules are in `node/security/`.
"""

from typing import Protocol

from millstream.formats.model.access_control import AclOperation, AclResourceType
from millstream.node.server.service import Peer


class Authorizer(Protocol):
    @property
    def is_enabled(self) -> bool:
        """False if there are no checks: `authorizer.class.name` is not set."""
        ...

    def allows(self, peer: Peer, operation: AclOperation, resource: AclResourceType, name: str) -> bool: ...


class NoAuthorizer:
    """Allows everything, as Kafka does without `authorizer.class.name`."""

    is_enabled = False

    def allows(self, peer: Peer, operation: AclOperation, resource: AclResourceType, name: str) -> bool:
        return True
