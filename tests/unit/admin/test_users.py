"""Users with several mechanisms, on a cluster that refuses a user who is twice in a request, as Kafka does."""

from types import SimpleNamespace
from typing import Any, cast

from millstream.admin.users import UserAdmin
from millstream.formats.model.errors import ErrorCode
from millstream.raw_client import Cluster


class Users:
    """The SCRAM users of a Kafka: name and number of the mechanism."""

    def __init__(self) -> None:
        self.credentials: set[tuple[str, int]] = set()

    def call(self, api: str, **fields: Any) -> SimpleNamespace:
        if api == "describe_user_scram_credentials":
            infos = [SimpleNamespace(mechanism=number, iterations=4096) for _, number in sorted(self.credentials)]
            row = SimpleNamespace(user="alice", error_code=0, error_message=None, credential_infos=infos)
            return SimpleNamespace(error_code=0, error_message=None, results=[row])
        added = {(row["name"], row["mechanism"]) for row in fields["upsertions"]}
        removed = {(row["name"], row["mechanism"]) for row in fields["deletions"]}
        code = ErrorCode.DUPLICATE_RESOURCE if len(added) + len(removed) > 1 else ErrorCode.NONE
        if not code:
            self.credentials = (self.credentials | added) - removed
        return SimpleNamespace(results=[SimpleNamespace(user="alice", error_code=code, error_message="twice")])


def test_each_mechanism_is_a_request_of_its_own() -> None:
    users = Users()
    admin = UserAdmin(cast(Cluster, users))
    admin.set_password("alice", "secret", ["SCRAM-SHA-256", "SCRAM-SHA-512"], 4096)
    assert users.credentials == {("alice", 1), ("alice", 2)}
    assert admin.remove("alice") == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert users.credentials == set()
