"""`python -m millstream.node.security` prints docs/authorization.md: ACLs, and what each API needs."""

from collections.abc import Iterator

from millstream.formats.model.access_control import OPERATIONS
from millstream.formats.protocol.schema import request_schema
from millstream.node.security.api_checks import API_CHECKS, ApiCheck

_HEAD = """\
# Permissions: ACLs

Made by `python -m millstream.node.security` from the table that the broker itself uses.

`authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer` on all nodes switches ACLs on. From then
on every request needs permission. The rules are those of Kafka's StandardAuthorizer, and so are the records in the
metadata log, the APIs and the error codes: `kafka-acls` and the admin clients of all languages work unchanged.

```sh
millstream acl add User:alice produce --topic orders
millstream acl add User:bob consume --topic orders --group billing
millstream acl add User:app all --topic app- --group app- --prefixed
millstream acl explain User:bob read --topic orders      # which ACL decides, and which command would permit it
millstream acl list --topic orders
```

## Rules
- `super.users` (`User:admin;User:broker-1`) may do everything.
- A denial wins over every permission.
- READ, WRITE, DELETE and ALTER permit DESCRIBE too; ALTER_CONFIGS permits DESCRIBE_CONFIGS; ALL permits all. A denial
  denies only what it names.
- The name of a resource is LITERAL (`*` is all) or PREFIXED. The host is an address or `*`, and, in addition to Kafka,
  a range such as `10.0.0.0/8` or `2001:db8::/32`.
- `User:*` is every principal. ACLs for the groups of a client (`Group:ops`, for example from a claim of its token)
  apply like its own.
- A resource without any ACL is denied, or free for all with `allow.everyone.if.no.acl.found=true`.
- Brokers need CLUSTER_ACTION on the cluster, or are super users. Who has CLUSTER_ACTION can act for every client: give
  it to brokers alone.
- An ACL is in force on a broker as soon as it has read it from the metadata log. Fetch sessions that were opened before
  are refused too.

## Brokers and clients
- If brokers have a listener of their own (`inter.broker.listener.name`), the other listeners do not serve the APIs of
  brokers (share state; without an authorizer also WriteTxnMarkers and fetches of followers), and do not list them in
  ApiVersions. The APIs of the quorum and of the controller are on controller listeners alone.
- Only brokers write to internal topics. With an authorizer a broker is who may CLUSTER_ACTION. Without one, a broker
  proves itself by the incarnation id of its registration, which is only in the metadata log, and comes over the
  listener of the brokers. A client id proves nothing. Keep controller listeners closed to clients: without an
  authorizer, who reaches one can read the metadata log.
- Two topics with `__millstream` are written by clients, with rights as for any topic: `__millstream_sink_decisions`
  by Spark sinks ([spark.md](spark.md)) and `__millstream_pipelines` by pipelines
  ([their rights](pipelines.md#rights-on-a-secured-cluster)).

## Operations of each resource
"""


def resource_rows() -> Iterator[str]:
    yield "| resource | operations |"
    yield "|---|---|"
    for resource, operations in OPERATIONS.items():
        yield f"| {resource.name} | {', '.join(operation.name for operation in operations)} |"


def api_rows() -> Iterator[str]:
    yield "| API | key | operation | resource | when |"
    yield "|---|---|---|---|---|"
    for name, check in sorted(API_CHECKS.items(), key=lambda row: request_schema(row[0]).api_key):
        yield from _rows_of(name, check)


def _rows_of(name: str, check: ApiCheck) -> Iterator[str]:
    title = "".join(part.capitalize() for part in name.split("_"))
    key = request_schema(name).api_key
    if not check.needs:
        yield f"| {title} | {key} | | | {check.note} |"
    for number, need in enumerate(check.needs):
        first = f"| {title} | {key}" if number == 0 else "| |"
        note = "; ".join(text for text in (need.note, "" if number else check.note) if text)
        yield f"{first} | {need.operation.name} | {need.resource.name} | {note} |"


def document() -> str:
    apis = "\n".join(api_rows())
    return _HEAD + "\n".join(resource_rows()) + "\n\n## What each API needs\n" + apis + "\n"


if __name__ == "__main__":
    print(document(), end="")
