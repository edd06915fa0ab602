"""A source with TLS, logins and ACLs; the commands; secrets that are never shown."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millstream.admin.acls import Acl, AclAdmin, exactly
from millstream.admin.mirrors import MirrorAdmin
from millstream.cli.app import app
from millstream.formats.model.access_control import AclOperation, AclPatternType, AclPermission, AclResourceType
from millstream.raw_client import Cluster
from millstream.testing import EmbeddedBroker
from tests.certificates import authority
from tests.mirrors import Mirror, cluster_of, fresh
from tests.waiting import eventually, until

pytestmark = pytest.mark.timeout(300)
SECRET = "mirror-secret-1"
TOKEN_URL = "https://127.0.0.1:1/token"
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
JAAS = f'{_MODULE} username="admin" password="{SECRET}" user_admin="{SECRET}";'
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secured")


@pytest.fixture(scope="module")
def source(directory: Path) -> Iterator[EmbeddedBroker]:
    files = authority().node().write(directory, "source")
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": JAAS,
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:admin",
        **files.properties(),
    }
    with EmbeddedBroker(settings) as running:
        yield running


@pytest.fixture(scope="module")
def here(directory: Path) -> Iterator[EmbeddedBroker]:
    settings = {
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS",
        "millstream.mirror.secrets.dir": str(directory),
        "millstream.mirror.token.urls": TOKEN_URL,
    }
    with EmbeddedBroker(settings) as running:
        yield running


@pytest.fixture(scope="module")
def properties(directory: Path, source: EmbeddedBroker) -> Path:
    """The connection to the source. The password is in a file of its own, which brokers read."""
    (directory / "password.properties").write_text(f"password={SECRET}\n")
    reference = f"${{file:{directory / 'password.properties'}:password}}"
    path = directory / "source.properties"
    path.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={_MODULE} username="admin" password="{reference}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={directory / 'source-ca.pem'}\n"
    )
    return path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, (arguments, result.output, result.exception)
    return result.output


@pytest.fixture(scope="module")
def login(directory: Path) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "admin",
        "sasl.password": SECRET,
        "ssl.ca.location": str(directory / "source-ca.pem"),
    }


def test_the_commands_with_a_secured_source(
    source: EmbeddedBroker, here: EmbeddedBroker, properties: Path, login: dict[str, str]
) -> None:
    link, topic = fresh("link"), fresh("orders")
    with Cluster(source.bootstrap_servers, login, client_id="test", timeout_s=30) as cluster:
        cluster.create_topic(topic, 2, 1)
        cluster.create_topic("_schemas", 1, 1)
        AclAdmin(cluster).add([_reading(topic)])
        at = ("-b", here.bootstrap_servers)
        arguments = (
            "--from",
            source.bootstrap_servers,
            "--topics",
            f"{topic}.*",
            "--throttle",
            "50MB",
            "--acls",
            "--schemas",
        )
        run("mirror", "create", link, *arguments, "--source-config", str(properties), *at)

        def is_copied() -> None:
            status = json.loads(run("mirror", "status", link, "--json", *at))
            assert status["problem"] is None, status
            found = {each["name"]: each for each in status["topics"]}
            assert {name: each["state"] for name, each in found.items()} == {
                topic: "mirroring",
                "_schemas": "mirroring",
            }
            assert [row["lag_records"] for row in found[topic]["partitions"]] == [0, 0]

        eventually(is_copied)
        shown = run("mirror", "list", "--json", *at)
        assert SECRET not in shown and "***" in shown and topic in shown
        assert run("mirror", "list", link, "--json", *at) == shown
        verify = ("mirror", "verify", link, "--source-config", str(properties), *at)
        nothing = CliRunner().invoke(app, [*verify, "--topic", "unknown"])
        assert nothing.exit_code != 0 and "not a mirror topic" in f"{nothing.output}{nothing.exception}"
        rows = json.loads(run("mirror", "verify", link, "--source-config", str(properties), "--json", *at))
        assert [row["difference"] for row in rows] == [None, None, None]
        until(lambda: _principals(here, topic) == {"User:reader"}, "the ACL did not come over")
        AclAdmin(cluster).remove([exactly(_reading(topic))])
        until(lambda: _principals(here, topic) == set(), "the ACL was not removed")
        run("mirror", "pause", link, *at)
        assert json.loads(run("mirror", "list", "--json", *at))[0]["settings"]["paused"] == "true"
        run("mirror", "resume", link, *at)
        run("mirror", "promote", link, "--wait", "60", *at)
        run("mirror", "delete", link, *at)
        assert json.loads(run("mirror", "list", "--json", *at)) == []
    assert SECRET not in here.log_file.read_text()


def test_acls_that_the_source_removes_while_the_broker_restarts(
    source: EmbeddedBroker, here: EmbeddedBroker, properties: Path, login: dict[str, str]
) -> None:
    """They are removed here, and those that a user made here, or of promoted topics, stay."""
    link, one, two = fresh("link"), fresh("removed"), fresh("removed")
    at = ("-b", here.bootstrap_servers)
    with Cluster(source.bootstrap_servers, login, client_id="test", timeout_s=30) as cluster:
        acls = AclAdmin(cluster)
        for topic in (one, two):
            cluster.create_topic(topic, 1, 1)
            acls.add([_reading(topic), _reading(topic, "User:other"), _reading(topic, "User:own")])
        with cluster_of(here.bootstrap_servers) as own:
            AclAdmin(own).add([_reading(one, "User:own"), _reading(one, "User:here")])
        arguments = ("--from", source.bootstrap_servers, "--topics", "removed.*", "--acls")
        run("mirror", "create", link, *arguments, "--source-config", str(properties), *at)
        copied = {"User:reader", "User:other", "User:own"}
        until(lambda: _principals(here, one) == copied | {"User:here"}, "the ACLs did not come over")
        until(lambda: _principals(here, two) == copied, "the ACLs did not come over")

        here.stop()
        acls.remove([exactly(_reading(one, user)) for user in ("User:reader", "User:own")])
        here.start()
        until(lambda: "User:reader" not in _principals(here, one), "the ACL was not removed")
        assert _principals(here, one) == {"User:other", "User:own", "User:here"}

        run("mirror", "promote", link, "--topic", two, "--wait", "60", *at)
        acls.remove([exactly(_reading(topic, "User:other")) for topic in (one, two)])
        until(lambda: "User:other" not in _principals(here, one), "the ACL was not removed")
        assert _principals(here, two) == copied
        run("mirror", "promote", link, "--wait", "60", *at)
        run("mirror", "delete", link, *at)


def test_a_wrong_password_is_told_and_not_shown(source: EmbeddedBroker, here: EmbeddedBroker, directory: Path) -> None:
    mirror = Mirror(fresh("link"), here.bootstrap_servers, here.bootstrap_servers)
    admin = MirrorAdmin(cluster_of(here.bootstrap_servers))
    admin.create(
        mirror.name,
        {
            "bootstrap.servers": source.bootstrap_servers,
            "topics": ".*",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{_MODULE} username="admin" password="wrong-password-7";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(directory / "source-ca.pem"),
        },
    )
    until(lambda: "SASL PLAIN as 'admin'" in admin.status(mirror.name).problem)
    assert "wrong-password-7" not in here.log_file.read_text()
    for reference, reason in (("file:/etc/hostname", "is not in"), ("env:HOME", "HOME is not set")):
        jaas = f'{_MODULE} username="admin" password="${{{reference}}}";'
        admin.change(mirror.name, {"sasl.jaas.config": jaas})
        _until_problem(admin, mirror.name, reason)
    admin.change(mirror.name, {"ssl.truststore.location": "/nowhere.pem", "sasl.jaas.config": JAAS})
    until(lambda: "/nowhere.pem" in admin.status(mirror.name).problem)
    admin.delete(mirror.name)


def test_a_link_does_not_send_or_use_other_files_of_the_broker(here: EmbeddedBroker, tmp_path: Path) -> None:
    """A client that may create links chooses the source: a token in a file would be sent to it."""
    outside = tmp_path / "secret"
    outside.write_text("content-of-another-file")
    link, admin = fresh("link"), MirrorAdmin(cluster_of(here.bootstrap_servers))
    token = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": f"file://{outside}"}
    keytab = f'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="{outside}" principal="a@B";'
    where = {"bootstrap.servers": here.bootstrap_servers, "topics": ".*"}
    for settings in (
        {"security.protocol": "SASL_PLAINTEXT", **token},
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI", "sasl.jaas.config": keytab},
        {"security.protocol": "SSL", "ssl.keystore.type": "PEM", "ssl.keystore.location": str(outside)},
    ):
        admin.create(link, {**where, **settings})
        _until_problem(admin, link, f"{outside} is not read: it is not in")
        admin.delete(link)
    admin.create(link, {**where, "security.protocol": "SASL_PLAINTEXT", **token})
    admin.change(link, {"sasl.oauthbearer.token.endpoint.url": "https://[nothing"})
    _until_problem(admin, link, "not valid")
    admin.change(link, {"sasl.oauthbearer.token.endpoint.url": "https://169.254.169.254/token"})
    _until_problem(admin, link, "169.254.169.254/token is not requested: it is not in millstream.mirror.token.urls")
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    jaas = f'{module} required clientId="a" clientSecret="b";'
    admin.change(link, {"sasl.oauthbearer.token.endpoint.url": TOKEN_URL, "sasl.jaas.config": jaas})
    _until_problem(admin, link, "no token")  # it is allowed, and no one responds there
    admin.delete(link)


def _until_problem(admin: MirrorAdmin, link: str, reason: str) -> None:
    until(lambda: reason in admin.status(link).problem)


def _reading(topic: str, principal: str = "User:reader") -> Acl:
    literal, read, allow = AclPatternType.LITERAL, AclOperation.READ, AclPermission.ALLOW
    return Acl(principal, AclResourceType.TOPIC, topic, literal, read, allow, "*")


def _principals(here: EmbeddedBroker, topic: str) -> set[str]:
    with cluster_of(here.bootstrap_servers) as cluster:
        return {acl.principal for acl in AclAdmin(cluster).list() if acl.name == topic}
