"""The users of a secured simulated cluster and their ACLs: each client has exactly what it needs.

The administrator makes them before the other clients start. Afterwards it adds and removes ACLs of another user, so
that the tables of the authorizers change all the time, and snapshots have ACLs that are gone.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from millstream.formats.model.access_control import AclOperation, AclPatternType, AclPermission, AclResourceType
from millstream.formats.model.errors import ErrorCode
from millstream.node.metadata.image import MetadataImage
from millstream.node.security.core.scram import MIN_ITERATIONS, salted_password
from millstream.simulator.clients.acknowledged_state import SCHEMAS, SHORT
from millstream.simulator.clients.client import SimulatedClient
from millstream.simulator.clients.group_members import CLASSIC_GROUP, CONSUMER_GROUP, SHARE_GROUP
from millstream.simulator.clients.streams_members import CHANGELOG_TOPIC, STREAMS_GROUP
from millstream.simulator.clients.transactions import LEDGER, LOOP_GROUP, LOOP_ID, LOOP_INPUT, STATE, WRITER_ID
from millstream.simulator.clients.workload import SecurityChanges
from millstream.simulator.security import MECHANISM, password

Right = tuple[AclResourceType, str, AclOperation]
_ORDERS, _SMALL, _TELLERS = "orders", "small", "tellers"
_ANOTHER = "User:passing"


def _topics(operation: AclOperation, *names: str) -> tuple[Right, ...]:
    return tuple((AclResourceType.TOPIC, name, operation) for name in names)


def _groups(*names: str) -> tuple[Right, ...]:
    return tuple((AclResourceType.GROUP, name, AclOperation.READ) for name in names)


def _ids(*names: str) -> tuple[Right, ...]:
    return tuple((AclResourceType.TRANSACTIONAL_ID, name, AclOperation.WRITE) for name in names)


_READ, _WRITE, _DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
_ALL_METADATA = _topics(_DESCRIBE, _ORDERS, _SMALL, LEDGER.name, STATE.name, SCHEMAS.name, SHORT.name)
"""For clients that ask for the metadata of all topics."""
_PRODUCER = _topics(_WRITE, _ORDERS, _SMALL)
_APPLICATION = (
    *_topics(_READ, LOOP_INPUT[0]),
    *_topics(_WRITE, LEDGER.name, STATE.name),
    *_topics(_DESCRIBE, SCHEMAS.name, SHORT.name),
    *_ids(WRITER_ID, LOOP_ID),
    *_groups(LOOP_GROUP),
)
RIGHTS: Mapping[str, tuple[Right, ...]] = {
    "producer1": _PRODUCER,
    "producer2": _PRODUCER,
    "sourcer1": _PRODUCER,
    "sourcer2": _PRODUCER,
    "pipeliner": _PRODUCER,
    "committer": (*_topics(_READ, _ORDERS, _SMALL), *_groups(_TELLERS)),
    "consumer": _topics(_READ, _ORDERS, _SMALL),
    "app1": _APPLICATION,
    "app2": _APPLICATION,
    "reader": _topics(_READ, LEDGER.name, STATE.name),
    "auditor": _topics(_READ, LEDGER.name, STATE.name),
    "classic": (*_ALL_METADATA, *_topics(_READ, _ORDERS), *_groups(CLASSIC_GROUP)),
    "kip848-1": (*_ALL_METADATA, *_topics(_READ, _ORDERS), *_groups(CONSUMER_GROUP)),
    "kip848-2": (*_ALL_METADATA, *_topics(_READ, _ORDERS), *_groups(CONSUMER_GROUP)),
    "queue": (
        *_ALL_METADATA,
        *_topics(_READ, _ORDERS),
        *_groups(SHARE_GROUP),
        (AclResourceType.GROUP, SHARE_GROUP, AclOperation.ALTER_CONFIGS),
    ),
    "streams": (
        *_ALL_METADATA,
        *_topics(_READ, _ORDERS),
        *_groups(STREAMS_GROUP),
        *_topics(_DESCRIBE, CHANGELOG_TOPIC),
        *_topics(AclOperation.CREATE, CHANGELOG_TOPIC),
    ),
    "registrar": (*_ALL_METADATA, *_topics(_READ, SCHEMAS.name), *_topics(_WRITE, SCHEMAS.name)),
    "shortener": (
        *_ALL_METADATA,
        *_topics(_WRITE, SHORT.name),
        *_topics(_READ, SHORT.name),
        *_topics(AclOperation.DELETE, SHORT.name),
    ),
}
"""What each client may do, by its name."""


def _creation(principal: str, right: Right) -> dict[str, Any]:
    resource, name, operation = right
    return {
        "resource_type": int(resource),
        "resource_name": name,
        "resource_pattern_type": int(AclPatternType.LITERAL),
        "principal": principal,
        "host": "*",
        "operation": int(operation),
        "permission_type": int(AclPermission.ALLOW),
    }


def _upsertion(user: str) -> dict[str, Any]:
    salt = user.ljust(16, "-").encode()[:16]  # of one size, and the same in every run
    return {
        "name": user,
        "mechanism": MECHANISM.number,
        "iterations": MIN_ITERATIONS,
        "salt": salt,
        "salted_password": salted_password(MECHANISM, password(user), salt, MIN_ITERATIONS),
    }


async def add_users(client: SimulatedClient) -> bool:
    """Adds all users and their ACLs. False if it has to be tried again; doing it twice does no harm."""
    fields = {"deletions": [], "upsertions": [_upsertion(user) for user in RIGHTS]}
    response = await client.request_any("alter_user_scram_credentials", fields)
    codes = [row.error_code for row in response.results]
    creations = [_creation(f"User:{user}", right) for user, rights in RIGHTS.items() for right in rights]
    codes += [row.error_code for row in (await client.request_any("create_acls", {"creations": creations})).results]
    return not any(codes)


async def change_acls(client: SimulatedClient) -> str:
    """Adds an ACL of another user, or removes all of them; returns a line for the trace."""
    if client.randomness.random() < 0.7:
        right = (AclResourceType.TOPIC, f"passing-{client.randomness.randrange(20)}", AclOperation.READ)
        response = await client.request_any("create_acls", {"creations": [_creation(_ANOTHER, right)]})
        return f"add ACL of {right[1]}: {ErrorCode(response.results[0].error_code).name}"
    any_pattern, any_kind = 1, 1
    removal = {
        "resource_type_filter": any_kind,
        "resource_name_filter": None,
        "pattern_type_filter": any_pattern,
        "principal_filter": _ANOTHER,
        "host_filter": None,
        "operation": any_kind,
        "permission_type": any_kind,
    }
    response = await client.request_any("delete_acls", {"filters": [removal]})
    row = response.filter_results[0]
    return f"remove {len(row.matching_acls)} ACLs: {ErrorCode(row.error_code).name}"


SECURITY_CHANGES = SecurityChanges(add_users, change_acls)


def missing_from(image: MetadataImage) -> list[str]:
    """The users and ACLs that an image lacks."""
    found = {(each.principal, each.resource_type, each.resource_name, each.operation) for each in image.acls.values()}
    missing = [user for user in RIGHTS if (user, MECHANISM.number) not in image.scram_credentials]
    for user, rights in RIGHTS.items():
        missing += [
            f"{user}: {operation.name} of {name}"
            for resource, name, operation in rights
            if (f"User:{user}", resource, name, operation) not in found
        ]
    return missing


def missing_from_some(images: Iterable[MetadataImage | None]) -> bool:
    """Whether an image lacks something, or is not there."""
    return any(image is None or missing_from(image) for image in images)
