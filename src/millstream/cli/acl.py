"""`millstream acl`: list, add and remove ACLs, and explain which one decides."""

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from millstream.cli.options import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_SECONDS,
    Bootstrap,
    ClientSettings,
    Json,
    Timeout,
    complete_topic,
    open_cluster,
)
from millstream.cli.terminal import CommandFailedError, note, print_json, print_table
from millstream.formats.model.access_control import (
    CLUSTER_NAME,
    OPERATIONS,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
    parse_principal,
)

if TYPE_CHECKING:
    from millstream.admin.acls import Acl, AclAdmin

app = typer.Typer(
    help="Permissions (ACLs) of users on topics, groups, transactions and the cluster.\n\n"
    "A cluster with authorizer.class.name set denies everything that no ACL permits. `explain` says why.",
    no_args_is_help=True,
)

_TYPES = AclResourceType
_SHORT = {
    "produce": ((_TYPES.TOPIC, AclOperation.WRITE), (_TYPES.TOPIC, AclOperation.DESCRIBE)),
    "consume": (
        (_TYPES.TOPIC, AclOperation.READ),
        (_TYPES.TOPIC, AclOperation.DESCRIBE),
        (_TYPES.GROUP, AclOperation.READ),
    ),
}
"""Operations for a task, for the resources that are given."""

PrincipalArgument = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="The client: User:NAME, Group:NAME; User:* is everyone.")
]
OperationsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="OPERATION...",
        help="read, write, create, delete, alter, describe, cluster_action, describe_configs, alter_configs, "
        "idempotent_write, all; or a task: produce, consume.",
    ),
]
Topic = Annotated[
    str | None, typer.Option("--topic", metavar="NAME", help="A topic; * is all.", autocompletion=complete_topic)
]
Group = Annotated[str | None, typer.Option("--group", metavar="NAME", help="A group; * is all.")]
TransactionalId = Annotated[str | None, typer.Option("--transactional-id", metavar="ID", help="A transactional id.")]
OnCluster = Annotated[bool, typer.Option("--cluster", help="The cluster.")]
Token = Annotated[str | None, typer.Option("--token", metavar="ID", help="A delegation token.")]
User = Annotated[str | None, typer.Option("--user", metavar="PRINCIPAL", help="A user, for tokens: User:NAME.")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="The names are prefixes: --topic app- is all app-…")]
Deny = Annotated[bool, typer.Option("--deny", help="Deny. A denial wins over every permission.")]
Host = Annotated[
    str, typer.Option("--host", metavar="ADDRESS", help="From where: an address, a range (10.0.0.0/8), or *.")
]


class _Resource(NamedTuple):
    type: AclResourceType
    name: str


def _resources(
    topic: str | None,
    group: str | None,
    transactional_id: str | None,
    cluster: bool,
    token: str | None,
    user: str | None,
) -> list[_Resource]:
    given = (
        (_TYPES.TOPIC, topic),
        (_TYPES.GROUP, group),
        (_TYPES.CLUSTER, CLUSTER_NAME if cluster else None),
        (_TYPES.TRANSACTIONAL_ID, transactional_id),
        (_TYPES.DELEGATION_TOKEN, token),
        (_TYPES.USER, user),
    )
    return [_Resource(kind, name) for kind, name in given if name is not None]


def _principal(text: str) -> str:
    try:
        return str(parse_principal(text))
    except ValueError as error:
        raise CommandFailedError(str(error)) from None


def _pairs(operations: list[str], resources: list[_Resource]) -> list[tuple[_Resource, AclOperation]]:
    """Each operation with each resource that has it."""
    from millstream.admin.acls import read_operation

    if not resources:
        raise CommandFailedError("name a resource: --topic, --group, --transactional-id, --cluster, --token or --user")
    pairs: dict[tuple[_Resource, AclOperation], None] = {}
    for text in operations:
        if text in _SHORT:
            wanted = {kind for kind, _ in _SHORT[text]}
            if missing := wanted - {resource.type for resource in resources}:
                names = ", ".join(f"--{kind.name.lower()}" for kind in sorted(missing))
                raise CommandFailedError(f"{text} needs {names}")
            found = [(each, what) for kind, what in _SHORT[text] for each in resources if each.type == kind]
        else:
            operation = read_operation(text)
            found = [(each, operation) for each in resources if operation in (*OPERATIONS[each.type], AclOperation.ALL)]
            if not found:
                kinds = ", ".join(kind.name.lower() for kind, has in OPERATIONS.items() if operation in has)
                raise CommandFailedError(f"{text} is an operation of: {kinds}")
        pairs |= dict.fromkeys(found)
    return list(pairs)


def _acls(
    principal: str, pairs: list[tuple[_Resource, AclOperation]], *, prefixed: bool, deny: bool, host: str
) -> "list[Acl]":
    from millstream.admin.acls import Acl

    pattern = AclPatternType.PREFIXED if prefixed else AclPatternType.LITERAL
    permission = AclPermission.DENY if deny else AclPermission.ALLOW
    return [
        Acl(
            principal,
            resource.type,
            resource.name,
            AclPatternType.LITERAL if resource.type is _TYPES.CLUSTER else pattern,
            operation,
            permission,
            host,
        )
        for resource, operation in pairs
    ]


def _admin(bootstrap: str, timeout: float, settings: list[str] | None) -> "AclAdmin":
    from millstream.admin.acls import AclAdmin

    return AclAdmin(open_cluster(bootstrap, timeout, settings))


def _document(acl: "Acl") -> dict[str, Any]:
    return {
        "principal": acl.principal,
        "permission": acl.permission.name,
        "operation": acl.operation.name,
        "resource_type": acl.resource.name,
        "resource_name": acl.name,
        "pattern_type": acl.pattern.name,
        "host": acl.host,
    }


@app.command("list")
def list_(
    principal: Annotated[str | None, typer.Option("--principal", metavar="PRINCIPAL", help="Only of this.")] = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OnCluster = False,
    token: Token = None,
    user: User = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
    json: Json = False,
) -> None:
    """List ACLs: all, or those that apply to a resource, patterns included.

    \b
    millstream acl list
    millstream acl list --topic orders          also ACLs for * and for prefixes of "orders"
    millstream acl list --principal User:alice
    """
    from millstream.admin.acls import AclSelection

    admin = _admin(bootstrap, timeout, settings)
    who = None if principal is None else _principal(principal)
    resources = _resources(topic, group, transactional_id, cluster, token, user)
    wanted = [AclSelection(each.type, each.name, AclPatternType.MATCH, who) for each in resources]
    found = sorted({acl for each in wanted or [AclSelection(principal=who)] for acl in admin.list(each)})
    if json:
        print_json([_document(acl) for acl in found])
    elif not found:
        note("no ACLs")
    else:
        print_table(
            ("principal", "permission", "operation", "resource", "host"),
            [
                (
                    acl.principal,
                    acl.permission.name,
                    acl.operation.name,
                    f"{acl.resource.name}:{acl.name}" + ("*" if acl.pattern is AclPatternType.PREFIXED else ""),
                    acl.host,
                )
                for acl in found
            ],
        )


@app.command()
def add(
    principal: PrincipalArgument,
    operations: OperationsArgument,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OnCluster = False,
    token: Token = None,
    user: User = None,
    prefixed: Prefixed = False,
    deny: Deny = False,
    host: Host = "*",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Add ACLs: each operation for each resource. Existing ACLs are kept.

    \b
    millstream acl add User:alice produce --topic orders
    millstream acl add User:bob consume --topic orders --group billing
    millstream acl add User:app all --topic app- --group app- --prefixed
    millstream acl add User:broker-1 cluster_action --cluster
    millstream acl add User:eve all --topic orders --deny --host 10.0.0.0/8
    """
    resources = _resources(topic, group, transactional_id, cluster, token, user)
    pairs = _pairs(operations, resources)
    acls = _acls(_principal(principal), pairs, prefixed=prefixed, deny=deny, host=host)
    _admin(bootstrap, timeout, settings).add(acls)
    for acl in acls:
        print(f"added {acl}")


@app.command()
def remove(
    principal: PrincipalArgument,
    operations: OperationsArgument,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OnCluster = False,
    token: Token = None,
    user: User = None,
    prefixed: Prefixed = False,
    deny: Deny = False,
    host: Host = "*",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
) -> None:
    """Remove ACLs, with the arguments with which they were added.

    \b
    millstream acl remove User:alice produce --topic orders
    """
    from millstream.admin.acls import exactly

    resources = _resources(topic, group, transactional_id, cluster, token, user)
    pairs = _pairs(operations, resources)
    acls = _acls(_principal(principal), pairs, prefixed=prefixed, deny=deny, host=host)
    admin = _admin(bootstrap, timeout, settings)
    there = [acl for acl in acls if admin.list(exactly(acl))]
    if not there:
        raise CommandFailedError(
            "no such ACL: `millstream acl list` shows all; --prefixed, --deny and --host count too"
        )
    admin.remove([exactly(acl) for acl in there])
    for acl in there:
        print(f"removed {acl}")


@app.command()
def explain(
    principal: PrincipalArgument,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="One operation, such as read.")],
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: OnCluster = False,
    token: Token = None,
    user: User = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="The client's address.")] = "127.0.0.1",
    member_of: Annotated[
        list[str] | None, typer.Option("--member-of", metavar="Group:NAME", help="A group of the client. Repeatable.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = DEFAULT_TIMEOUT_SECONDS,
    settings: ClientSettings = None,
    json: Json = False,
) -> None:
    """Show whether a principal may do an operation, which ACL decides that, and which command permits it.

    \b
    millstream acl explain User:alice read --topic orders
    millstream acl explain User:alice write --topic orders --host 10.1.2.3
    """
    resources = _resources(topic, group, transactional_id, cluster, token, user)
    ((resource, wanted), *more) = _pairs([operation], resources)
    if more or operation in _SHORT:
        raise CommandFailedError("explain takes one operation and one resource")
    admin = _admin(bootstrap, timeout, settings)
    principals = [parse_principal(_principal(text)) for text in (principal, *(member_of or ()))]
    found = admin.explain(principals, wanted, resource.type, resource.name, host)
    if json:
        print_json(
            {
                "allowed": found.is_allowed,
                "reason": found.reason,
                "rule": None if found.acl is None else _document(found.acl),
                "command": found.command,
            }
        )
        return
    print(
        f"{'ALLOWED' if found.is_allowed else 'DENIED'}: {principal} {wanted.name} {resource.type.name}:"
        f"{resource.name} from {host}"
    )
    print(f"because {found.reason}" + (f": {found.acl}" if found.acl is not None else ""))
    if found.command is not None:
        print(f"to permit it: {found.command}")
