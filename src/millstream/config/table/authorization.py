"""Settings of the authorizer: ACLs, super users."""

from millstream.config.setting import Allowed, Importance, boolean, declared, string

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

AUTHORIZER_CLASS_NAME = string(
    "authorizer.class.name",
    "",
    f"`{STANDARD_AUTHORIZER}` switches ACLs on: every request needs permission. Empty: everything is allowed. The "
    "rules are Kafka's and are built in; other Java classes cannot be loaded.",
    importance=Importance.LOW,
    allowed=Allowed(
        f"empty (everything is allowed) or {STANDARD_AUTHORIZER} (ACLs); other Java classes cannot be loaded",
        lambda value: value in ("", STANDARD_AUTHORIZER),
    ),
)
SUPER_USERS = string(
    "super.users",
    "",
    "Principals that may do everything, separated by semicolons: `User:admin;User:broker-1`. The principals of the "
    "brokers themselves belong here, or have ACLs for CLUSTER_ACTION.",
    importance=Importance.LOW,
)
ALLOW_EVERYONE_IF_NO_ACL_FOUND = boolean(
    "allow.everyone.if.no.acl.found",
    False,
    "Whether a resource without any ACL may be used by everyone. By default only by super users.",
    importance=Importance.LOW,
)

SETTINGS = declared(globals())
