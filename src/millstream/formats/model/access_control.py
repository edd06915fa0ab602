"""Principals, and the vocabulary of ACLs: resource types, pattern types, operations, permissions. Kafka's numbers.

Only names and numbers are here. What an ACL allows is decided in `node/security/core/`.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple


class Principal(NamedTuple):
    """An authenticated identity, for example `User:alice`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


USER = "User"
GROUP = "Group"
ANONYMOUS = Principal(USER, "ANONYMOUS")
"""A client of a listener without authentication."""
ANY_USER = Principal(USER, "*")
CLUSTER_NAME = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""


def parse_principal(text: str) -> Principal:
    """`User:name` as a principal; ValueError if it is not of this form."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise ValueError(f"{text!r} is not a principal; write TYPE:NAME, for example User:alice")
    return Principal(kind, name)


class AclResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPatternType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


OPERATIONS: Mapping[AclResourceType, tuple[AclOperation, ...]] = MappingProxyType(
    {
        AclResourceType.TOPIC: (
            AclOperation.READ,
            AclOperation.WRITE,
            AclOperation.CREATE,
            AclOperation.DESCRIBE,
            AclOperation.DELETE,
            AclOperation.ALTER,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
        ),
        AclResourceType.GROUP: (
            AclOperation.READ,
            AclOperation.DESCRIBE,
            AclOperation.DELETE,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
        ),
        AclResourceType.CLUSTER: (
            AclOperation.CREATE,
            AclOperation.CLUSTER_ACTION,
            AclOperation.DESCRIBE_CONFIGS,
            AclOperation.ALTER_CONFIGS,
            AclOperation.IDEMPOTENT_WRITE,
            AclOperation.ALTER,
            AclOperation.DESCRIBE,
        ),
        AclResourceType.TRANSACTIONAL_ID: (
            AclOperation.DESCRIBE,
            AclOperation.WRITE,
            AclOperation.TWO_PHASE_COMMIT,
        ),
        AclResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
        AclResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
    }
)
"""The operations that each resource type has: Kafka's AclEntry. Other ones are refused when an ACL is created."""


def mask_of(operations: Iterable[AclOperation]) -> int:
    """The operations as bits, as in `authorized_operations`."""
    return sum(1 << operation for operation in operations)
