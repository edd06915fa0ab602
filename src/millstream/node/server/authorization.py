"""The interface between handlers and the authorizer: may this client do this?

Handlers call it with names as the request has them. The ACLs and their rules are in `node/security/`.
"""

from collections.abc import Hashable
from typing import Protocol

from millstream.formats.model.access_control import OPERATIONS, AclOperation, AclResourceType, mask_of
from millstream.node.server.service import Peer


class Authorizer(Protocol):
    @property
    def is_enabled(self) -> bool:
        """False if there are no checks: `authorizer.class.name` is not set."""
        ...

    def allows(self, peer: Peer, operation: AclOperation, resource: AclResourceType, name: str) -> bool: ...

    def sees(self, peer: Peer, operation: AclOperation, resource: AclResourceType, name: str) -> bool:
        """As `allows`, but a refusal is not recorded: for lists, which leave out what the client may not see, and
        where another permission is enough."""
        ...

    def allows_some(self, peer: Peer, operation: AclOperation, resource: AclResourceType) -> bool:
        """Whether the client may do this with at least one resource of the type."""
        ...

    def operations(self, peer: Peer, resource: AclResourceType, name: str) -> int:
        """What the client may do with a resource: the bits of `authorized_operations`."""
        ...

    def rights(self, peer: Peer) -> Hashable:
        """An object that is the same for clients with the same rights, until the ACLs change. For caches."""
        ...


class NoAuthorizer:
    """Allows everything, as Kafka does without `authorizer.class.name`."""

    is_enabled = False

    def allows(self, peer: Peer, operation: AclOperation, resource: AclResourceType, name: str) -> bool:
        return True

    def sees(self, peer: Peer, operation: AclOperation, resource: AclResourceType, name: str) -> bool:
        return True

    def allows_some(self, peer: Peer, operation: AclOperation, resource: AclResourceType) -> bool:
        return True

    def operations(self, peer: Peer, resource: AclResourceType, name: str) -> int:
        return _ALL[resource]

    def rights(self, peer: Peer) -> Hashable:
        return None


_ALL = {resource: mask_of(operations) for resource, operations in OPERATIONS.items()}
NO_AUTHORIZER = NoAuthorizer()
