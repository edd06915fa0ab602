"""The interface between the server and the audit log: client, address, operation and result of a request.

| called by | method |
|---|---|
| SASL and TLS, after each attempt | `authentication` |
| the authorizer, for a refusal | `denied` |
| the authorizer, for an allowed read or write of records, only if `samples_data` | `data_access` |
| the dispatcher, for each request of `ADMINISTRATION` | `administration` |
| ReportAuditEvents, for what a gateway has decided | `report` |

All methods return at once, never wait and never raise. Callers on a hot path test `is_enabled` (or `samples_data`)
first. The audit log itself is in `node/security/audit_log.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from millstream.formats.model.access_control import AclOperation, AclResourceType
from millstream.node.server.service import Peer

ADMINISTRATION = frozenset(
    {
        "create_topics",
        "delete_topics",
        "create_partitions",
        "delete_records",
        "alter_configs",
        "incremental_alter_configs",
        "create_acls",
        "delete_acls",
        "alter_user_scram_credentials",
        "create_delegation_token",
        "renew_delegation_token",
        "expire_delegation_token",
        "alter_client_quotas",
        "alter_partition_reassignments",
        "alter_replica_log_dirs",
        "elect_leaders",
        "update_features",
        "unregister_broker",
        "add_raft_voter",
        "remove_raft_voter",
        "delete_groups",
        "offset_delete",
        "alter_share_group_offsets",
        "delete_share_group_offsets",
    }
)
"""APIs that change the cluster. Each request is audited with its result."""


class Auditor(Protocol):
    recorded: int
    """Events since the start."""
    dropped: int
    """Events that were lost because too many waited."""

    @property
    def is_enabled(self) -> bool:
        """False if nothing is recorded: `millstream.audit.enable` is false."""
        ...

    def refresh(self) -> None:
        """Called after a change of settings."""
        ...

    @property
    def samples_data(self) -> bool:
        """Whether some of the allowed reads and writes of records are recorded."""
        ...

    def authentication(self, peer: Peer, mechanism: str, *, succeeded: bool, name: str = "", reason: str = "") -> None:
        """An attempt to authenticate. `mechanism` is `TLS` or a SASL mechanism, `name` the user that was given."""
        ...

    def denied(self, peer: Peer, operation: AclOperation, resource: AclResourceType, name: str, api: str = "") -> None:
        """The authorizer has refused an operation."""
        ...

    def data_access(self, peer: Peer, operation: AclOperation, resource: AclResourceType, name: str) -> None:
        """The authorizer has allowed a read or write of records. One of many is recorded."""
        ...

    def administration(self, peer: Peer, api: str, request: Any, response: Any) -> None:
        """A request of `ADMINISTRATION`, with its decoded response."""
        ...

    def report(self, peer: Peer, documents: Sequence[Mapping[str, Any]]) -> int:
        """Events of a gateway, as `reported_event` returns them. The number of them that were taken: the first ones."""
        ...


class NoAuditor:
    """Records nothing."""

    is_enabled = False
    samples_data = False

    def refresh(self) -> None:
        pass

    recorded = 0
    dropped = 0

    def authentication(self, peer: Peer, mechanism: str, *, succeeded: bool, name: str = "", reason: str = "") -> None:
        pass

    def denied(self, peer: Peer, operation: AclOperation, resource: AclResourceType, name: str, api: str = "") -> None:
        pass

    def data_access(self, peer: Peer, operation: AclOperation, resource: AclResourceType, name: str) -> None:
        pass

    def administration(self, peer: Peer, api: str, request: Any, response: Any) -> None:
        pass

    def report(self, peer: Peer, documents: Sequence[Mapping[str, Any]]) -> int:
        return len(documents)
