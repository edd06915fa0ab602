"""The rules of ACLs, compared with a naive model, and by example."""

from dataclasses import replace
from random import Random
from uuid import UUID

import pytest

from millstream.formats.model.access_control import (
    ANONYMOUS,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    Principal,
    parse_principal,
)
from millstream.formats.model.errors import ErrorCode
from millstream.node.metadata.image import MetadataImage, apply
from millstream.node.metadata.records import AccessControlEntryRecord
from millstream.node.security.core.acls import AclTable, AuthorizerSettings, host_matches
from millstream.node.security.core.changes import AclBinding, AclFilter, create_acls, delete_acls, select

ALICE = Principal("User", "alice")
TOPIC, GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
NO_SETTINGS = AuthorizerSettings()
_IMPLYING = {
    AclOperation.DESCRIBE: (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER),
    AclOperation.DESCRIBE_CONFIGS: (AclOperation.ALTER_CONFIGS,),
}


def acl(
    operation: AclOperation = AclOperation.READ,
    name: str = "orders",
    *,
    deny: bool = False,
    pattern: AclPatternType = AclPatternType.LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    kind: AclResourceType = TOPIC,
    number: int = 0,
) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=UUID(int=number),
        resource_type=kind,
        resource_name=name,
        pattern_type=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=AclPermission.DENY if deny else AclPermission.ALLOW,
    )


def allows(
    acls: list[AccessControlEntryRecord],
    operation: AclOperation,
    name: str = "orders",
    *,
    settings: AuthorizerSettings = NO_SETTINGS,
    principals: tuple[Principal, ...] = (ALICE,),
    host: str = "10.1.2.3",
) -> bool:
    return AclTable(acls, settings).access(principals, host).allows(operation, TOPIC, name)


def naive(
    acls: list[AccessControlEntryRecord],
    settings: AuthorizerSettings,
    principals: tuple[Principal, ...],
    host: str,
    operation: AclOperation,
    kind: AclResourceType,
    name: str,
) -> bool:
    """StandardAuthorizer, read ACL by ACL."""
    if any(each in settings.super_users for each in principals):
        return True
    names = {*map(str, principals), "User:*"}
    found = [
        each
        for each in acls
        if each.resource_type == kind
        and (
            name.startswith(each.resource_name)
            if each.pattern_type == AclPatternType.PREFIXED
            else each.resource_name in (name, "*")
        )
    ]
    own = [each for each in found if each.principal in names and each.host in ("*", host)]
    if any(
        each.permission_type == AclPermission.DENY and each.operation in (operation, AclOperation.ALL) for each in own
    ):
        return False
    permitting = (operation, AclOperation.ALL, *_IMPLYING.get(operation, ()))
    if any(each.permission_type == AclPermission.ALLOW and each.operation in permitting for each in own):
        return True
    return not found and settings.allows_without_acls


@pytest.mark.parametrize("seed", range(40))
def test_decisions_are_those_of_the_naive_model(seed: int) -> None:
    random = Random(seed)
    names = ["a", "ab", "abc", "b", "*", "ba"]
    principals = ["User:alice", "User:bob", "User:*", "Group:ops"]
    hosts = ["*", "10.0.0.1", "10.0.0.2"]
    operations = [operation for operation in AclOperation if operation >= AclOperation.ALL]
    acls = [
        acl(
            random.choice(operations),
            random.choice(names),
            deny=random.random() < 0.3,
            pattern=random.choice([AclPatternType.LITERAL, AclPatternType.PREFIXED]),
            principal=random.choice(principals),
            host=random.choice(hosts),
            kind=random.choice([TOPIC, GROUP]),
            number=number,
        )
        for number in range(random.randrange(1, 12))
    ]
    settings = AuthorizerSettings(
        frozenset({Principal("User", "bob")} if random.random() < 0.2 else ()), random.random() < 0.5
    )
    table = AclTable(acls, settings)
    for principal in (ALICE, Principal("User", "bob"), ANONYMOUS):
        for groups in ((), (Principal("Group", "ops"),)):
            for host in ("10.0.0.1", "10.0.0.3"):
                access = table.access((principal, *groups), host)
                for operation in operations[1:]:
                    for kind in (TOPIC, GROUP):
                        for name in ("a", "ab", "abcd", "b", "c", "*"):
                            expected = naive(acls, settings, (principal, *groups), host, operation, kind, name)
                            assert access.allows(operation, kind, name) is expected, (operation, kind, name, acls)
                            assert access.explain(operation, kind, name).is_allowed is expected


def test_denial_wins_over_every_permission() -> None:
    acls = [acl(AclOperation.ALL, "*"), acl(AclOperation.WRITE, "ord", deny=True, pattern=AclPatternType.PREFIXED)]
    assert allows(acls, AclOperation.READ)
    assert not allows(acls, AclOperation.WRITE)
    assert allows(acls, AclOperation.DESCRIBE), "a denial of WRITE does not deny DESCRIBE"


def test_super_users_may_do_everything() -> None:
    settings = AuthorizerSettings(frozenset({parse_principal("User:alice")}))
    assert allows([acl(AclOperation.ALL, "*", deny=True)], AclOperation.WRITE, settings=settings)


def test_resources_without_acls_are_for_all_only_if_the_setting_says_so() -> None:
    everyone = AuthorizerSettings(allows_without_acls=True)
    others = [acl(AclOperation.READ, "orders", principal="User:bob")]
    assert allows([], AclOperation.WRITE, settings=everyone)
    assert not allows([], AclOperation.WRITE)
    assert not allows(others, AclOperation.WRITE, settings=everyone), "an ACL of another principal counts"


@pytest.mark.parametrize(
    ("pattern", "host", "matches"),
    [
        ("*", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.0.0.0/8", "::ffff:10.1.2.3", True),
        ("2001:db8::/32", "2001:db8::7", True),
        ("2001:db8::/32", "10.1.2.3", False),
        ("0:0:0:0:0:0:0:1", "::1", True),
        ("10.0.0.0/99", "10.1.2.3", False),
        ("10.0.0.0/8", "unknown", False),
    ],
)
def test_hosts_match_addresses_and_networks(pattern: str, host: str, matches: bool) -> None:
    assert host_matches(pattern, host) is matches


def test_an_acl_for_any_resource_of_a_type_is_found() -> None:
    def some(*acls: AccessControlEntryRecord) -> bool:
        return AclTable(acls, NO_SETTINGS).access((ALICE,), "h").allows_some(AclOperation.WRITE, TOPIC)

    write, prefixed = AclOperation.WRITE, AclPatternType.PREFIXED
    assert not some()
    assert some(acl(write))
    assert some(acl(write, "o", pattern=prefixed))
    assert not some(acl(AclOperation.READ))
    assert not some(acl(write), acl(write, "*", deny=True))
    assert not some(acl(write), acl(write, deny=True))
    assert not some(acl(write), acl(write, "ord", deny=True, pattern=prefixed))
    assert not some(acl(write, "orders", pattern=prefixed), acl(write, "ord", deny=True, pattern=prefixed))
    assert some(acl(write, "or", pattern=prefixed), acl(write, "ord", deny=True, pattern=prefixed))
    assert some(acl(write, "*"), acl(write, "ord", deny=True))


def test_names_of_clients_do_not_fill_the_memory() -> None:
    access = AclTable([acl()], NO_SETTINGS).access((ALICE,), "h")
    for number in range(30_000):
        access.allows(AclOperation.READ, TOPIC, f"topic-{number}")
    assert len(access._masks[TOPIC]) <= 10_000


# Changes


def binding(**changes: object) -> AclBinding:
    return replace(AclBinding(TOPIC, "orders", AclPatternType.LITERAL, "User:alice", "*", 3, 3), **changes)  # type: ignore[arg-type]


def test_created_acls_are_stored_once() -> None:
    first = create_acls(MetadataImage(), [binding(), binding()], Random(1))
    assert len(first.records) == 1 and [row.error for row in first.results] == [ErrorCode.NONE] * 2
    image = apply(MetadataImage(), first.records, offset=0, epoch=0).image
    assert not create_acls(image, [binding()], Random(1)).records


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource_type": 1},
        {"resource_type": 99},
        {"pattern_type": AclPatternType.MATCH},
        {"operation": 1},
        {"operation": 77},
        {"permission": 1},
        {"resource_name": ""},
        {"resource_type": AclResourceType.CLUSTER, "resource_name": "other"},
        {"principal": "alice"},
        {"host": ""},
        {"host": "10.0.0.0/99"},
    ],
)
def test_acls_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    decision = create_acls(MetadataImage(), [binding(**wrong), binding()], Random(1))
    assert [row.error for row in decision.results] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert decision.results[0].message and len(decision.records) == 1


def test_filters_select_as_kafka_does() -> None:
    acls = [
        acl(name="orders", number=1),
        acl(name="*", number=2),
        acl(name="ord", pattern=AclPatternType.PREFIXED, number=3),
        acl(name="other", number=4),
        acl(name="orders", pattern=AclPatternType.PREFIXED, number=5),
    ]

    def numbers(wanted: AclFilter) -> list[int]:
        return [each.id.int for each in select(acls, wanted)]

    assert numbers(AclFilter(resource_name="orders", pattern_type=AclPatternType.MATCH)) == [1, 2, 3, 5]
    assert numbers(AclFilter(resource_name="orders", pattern_type=AclPatternType.ANY)) == [1, 5]
    assert numbers(AclFilter(resource_name="orders", pattern_type=AclPatternType.LITERAL)) == [1]
    assert numbers(AclFilter(pattern_type=AclPatternType.PREFIXED)) == [3, 5]
    assert numbers(AclFilter(principal="User:bob")) == []


def test_deletion_reports_what_each_filter_selected() -> None:
    created = create_acls(MetadataImage(), [binding(), binding(host="h")], Random(1))
    image = apply(MetadataImage(), created.records, offset=0, epoch=0).image
    decision = delete_acls(image, [AclFilter(host="h"), AclFilter(), AclFilter(operation=0)])
    assert [len(row.deleted) for row in decision.results] == [1, 2, 0]
    assert decision.results[2].error is ErrorCode.INVALID_REQUEST
    assert len(decision.records) == 2
    assert not apply(image, decision.records, offset=1, epoch=0).image.acls
