"""The user of a page: its role, what is masked for it, and whether its session is still valid. And all actions with
the role that each needs.

The gateway makes a Visitor for each request (`VISITOR` in its scope). A page keeps it, and asks again before every
request to the cluster: a page that stays open after the sign-out reads and changes nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from millstream.access.masking import Mask
from millstream.access.roles import Role
from millstream.console.console import Console, UserError

VISITOR = "millstream.visitor"
"""In the scope of a request."""


class Action(Enum):
    """What a user can change: what it is called, and the lowest role."""

    CREATE_TOPIC = "create topics", Role.ADMIN
    DELETE_TOPIC = "delete topics", Role.ADMIN
    DELETE_RECORDS = "delete records", Role.ADMIN
    ADD_PARTITIONS = "add partitions", Role.ADMIN
    CHANGE_SETTINGS = "change settings of topics", Role.ADMIN
    DELETE_GROUP = "delete groups", Role.ADMIN
    DELETE_OFFSETS = "delete offsets of groups", Role.ADMIN
    CHANGE_BROKER_SETTINGS = "change settings of brokers", Role.ADMIN
    MOVE_REPLICAS = "move replicas", Role.ADMIN
    UNREGISTER_BROKER = "unregister brokers", Role.ADMIN
    ELECT_LEADERS = "elect leaders", Role.ADMIN
    CHANGE_ACLS = "change ACLs", Role.ADMIN
    CHANGE_USERS = "change users", Role.ADMIN
    EXPIRE_TOKENS = "expire tokens", Role.ADMIN
    CHANGE_QUOTAS = "change quotas", Role.ADMIN
    SET_COMPATIBILITY = "change compatibility levels", Role.ADMIN
    DELETE_SCHEMA = "delete schemas", Role.ADMIN
    CREATE_MIRROR = "create mirror links", Role.ADMIN
    PROMOTE_MIRROR = "promote mirror topics", Role.ADMIN
    REVERSE_MIRROR = "reverse mirror links", Role.ADMIN
    DELETE_MIRROR = "delete mirror links", Role.ADMIN
    PAUSE_MIRROR = "pause mirror links", Role.OPERATOR
    CHANGE_LOG_LEVELS = "change log levels", Role.OPERATOR
    PRODUCE = "produce records", Role.OPERATOR
    MOVE_OFFSETS = "move offsets", Role.OPERATOR
    REDRIVE = "send dead letters back", Role.OPERATOR
    REGISTER_SCHEMA = "register schemas", Role.OPERATOR

    @property
    def words(self) -> str:
        return self.value[0]

    @property
    def role(self) -> Role:
        return self.value[1]


@dataclass(frozen=True, slots=True)
class Visitor:
    name: str
    """Empty: there is no sign-in."""
    role: Role
    console: Console
    """With the connection and the permissions of the user."""
    mask_of: Callable[[str], Mask | None]
    """What is masked in a topic."""
    is_valid: Callable[[], bool]
    """False after the end of the session, and if the cluster refuses the user now."""
    hold: Callable[[], None]
    release: Callable[[], None]
    """Around the life of a page: its connection stays open."""
    can_sign_out: bool = False
    may_write: Callable[[str], bool] = lambda _: True
    """Whether the user may write records to a topic directly."""
    note: Callable[[Action, str, Sequence[object]], None] = lambda *_: None
    """Records an action, with its result (success, failure, denied) and its arguments."""
    serves_http: bool = True
    """Whether the HTTP API of the gateway is that of this cluster."""
    cluster: str = ""
    """The name of the cluster of the page, if the console has several."""
    clusters: Sequence[str] = ()
    """All clusters that the user may choose."""

    def check(self, action: Action | None = None) -> None:
        """UserError if the session is over, or if the role is not enough for the action."""
        if not self.is_valid():
            raise UserError("your session has ended. Load the page again to sign in.")
        if action is not None and self.role < action.role:
            raise UserError(f"your role is {self.role}, and only {action.role} may {action.words}.")

    def check_topic(self, topic: str) -> None:
        """UserError if the user may not write records to the topic."""
        if not self.may_write(topic):
            raise UserError(f"{topic} has the schemas of the registry: change them on the page Schemas.")


def anonymous(console: Console) -> Visitor:
    """Without a sign-in, every user is admin."""
    return Visitor("", Role.ADMIN, console, lambda _: None, lambda: True, _nothing, _nothing)


def _nothing() -> None:
    pass
