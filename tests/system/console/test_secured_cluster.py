"""The console of a cluster with users: sign-in by SCRAM, what a viewer is offered, and what the server refuses it."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from millstream.admin.acls import AclAdmin, AclSelection
from millstream.admin.quotas import QuotaAdmin
from millstream.admin.topics import TopicAdmin
from millstream.admin.users import UserAdmin
from millstream.raw_client import Cluster, WireError
from tests.integration.raw_client.kafka_with_security import SecuredKafka, secured_millstream
from tests.system.console.conftest import SIZE, TIMEOUT_MS, GatewayProcess, Looking
from tests.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.timeout(300)
ACCESS = '[roles]\nusers = { alice = "admin", vera = "viewer" }\n'
PASSWORDS = {"alice": "wonder", "vera": "vera-secret"}
NEW_PASSWORDS = ("otto-first-pass", "otto-second-pass")
_TOPIC, _GROUP, _CLUSTER = 2, 3, 4
_READ, _DESCRIBE, _DESCRIBE_CONFIGS = 3, 8, 10


def allow(cluster: Cluster, kind: int, name: str, operation: int) -> None:
    row = {"resource_type": kind, "resource_name": name, "resource_pattern_type": 3, "principal": "User:vera"}
    row |= {"host": "*", "operation": operation, "permission_type": 3}
    assert [each.error_code for each in cluster.call("create_acls", creations=[row]).results] == [0]


@pytest.fixture(scope="module")
def broker(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    tokens = {"delegation.token.secret.key": "for tests only"}
    with secured_millstream(tmp_path_factory.mktemp("broker"), tokens) as running:
        for name, password in PASSWORDS.items():
            running.add_user(name, password)
        with Cluster(running.address("PLAINTEXT")) as cluster:
            for topic in ("orders", "secret"):
                cluster.create_topic(topic, 1, 1)
            # As an administrator would: vera may read orders, and no more. The gateway adds its roles.
            for operation in (_READ, _DESCRIBE, _DESCRIBE_CONFIGS):
                allow(cluster, _TOPIC, "orders", operation)
            allow(cluster, _GROUP, "billing", _DESCRIBE)
            allow(cluster, _CLUSTER, "kafka-cluster", _DESCRIBE)
        yield running


@pytest.fixture(scope="module")
def secured_gateway(broker: SecuredKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    directory = tmp_path_factory.mktemp("gateway")
    connection, access = directory / "client.properties", directory / "access.toml"
    connection.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.username=alice\nsasl.password=wonder\n"
    )
    access.write_text(ACCESS)
    for file in (connection, access):
        file.chmod(0o600)
    options = ("--command-config", str(connection), "--access-file", str(access), "--pass-through", "SCRAM-SHA-256")
    running = GatewayProcess(broker.address("SASL"), directory / "gateway.log", *options)
    yield running
    running.stop()
    log = (directory / "gateway.log").read_text()
    assert "Traceback" not in log, log[-3000:]
    assert not any(secret in log for secret in (*PASSWORDS.values(), *NEW_PASSWORDS))


@pytest.fixture
def sign_in(browser: Any, secured_gateway: GatewayProcess) -> Iterator[Any]:
    contexts = []

    def enter(user: str, path: str) -> Looking:
        context = browser.new_context(viewport=SIZE, color_scheme="light")
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        looking = Looking(page, secured_gateway.url)
        page.goto(f"{secured_gateway.url}/console{path}")
        assert "/console/sign-in" in page.url
        page.fill("input[name=name]", user)
        page.fill("input[name=password]", PASSWORDS[user])
        page.click("button[type=submit]")
        page.wait_for_selector("[data-testid=page-title]")
        page.wait_for_function("window.socket?.connected")
        return looking

    yield enter
    for context in contexts:
        context.close()


def test_a_viewer_sees_its_topics_and_no_buttons_that_change_something(
    sign_in: Any, broker: SecuredKafka, secured_gateway: GatewayProcess
) -> None:
    looking = sign_in("vera", "/topics")
    page = looking.page
    looking.await_text("user", "vera · viewer")
    looking.await_text("topics", "orders")
    assert "secret" not in looking.text("topics"), "a topic that this user may not describe"
    assert not page.get_by_test_id("open-create").is_visible()
    looking.open("/topics?topic=orders")
    looking.await_text("topic-partitions", "1")
    for button in ("add-partitions", "delete-topic"):
        assert not page.get_by_test_id(button).is_visible(), button
    page.get_by_test_id("delete-topic").evaluate("button => button.click()")  # the server takes no event of it
    page.get_by_test_id("tab-settings").click()
    page.get_by_test_id("settings").get_by_text("retention.ms", exact=True).click()
    page.get_by_test_id("edit-setting").wait_for()
    assert page.get_by_test_id("save-setting").count() == 0
    assert page.get_by_test_id("confirm").count() == 0
    # What a page does not offer, the server refuses for every user.
    auth = ("vera", PASSWORDS["vera"])
    refused = httpx.delete(f"{secured_gateway.url}/topics/orders", auth=auth, timeout=TIMEOUT_SECONDS)
    assert (refused.status_code, refused.json()["error_code"]) == (403, 40302)
    with Cluster(broker.address("PLAINTEXT")) as cluster:
        assert "orders" in cluster.topics()
    assert looking.problems == []


def test_an_administrator_is_offered_what_a_viewer_is_not(sign_in: Any, broker: SecuredKafka) -> None:
    looking = sign_in("alice", "/topics?topic=secret")
    looking.await_text("user", "alice · admin")
    page = looking.page
    page.get_by_test_id("add-partitions").wait_for()
    page.get_by_test_id("delete-topic").click()
    page.get_by_test_id("confirm").click()
    page.wait_for_url("**/console/topics")
    with Cluster(broker.address("PLAINTEXT")) as cluster:
        assert "secret" not in cluster.topics()
        TopicAdmin(cluster).create("secret", 1, 1, {})
    assert looking.problems == []


def test_who_is_throttled_is_shown_on_a_cluster_with_users(sign_in: Any, broker: SecuredKafka) -> None:
    """The gateway reads the metrics of the brokers as the user of the page, on connections that have logged in."""
    with Cluster(broker.address("PLAINTEXT")) as cluster:
        QuotaAdmin(cluster).alter({"user": "alice"}, {"producer_byte_rate": 1e9})
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
    login |= {"sasl.username": "alice", "sasl.password": PASSWORDS["alice"]}
    producer = Producer({"bootstrap.servers": broker.address("SASL"), **login})
    producer.produce("orders", b"x" * 1000)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    looking = sign_in("alice", "/quotas")
    looking.await_text("quota-usage", "user=alice")
    looking.await_text("quota-usage", "within the quota")
    looking.open("/")
    # The metrics also tell of the certificates of other listeners, which openssl made for 30 days.
    looking.await_text("problems", "The certificate of listener SASLTLS of broker")
    looking.page.wait_for_function("!document.body.innerText.includes('No broker serves metrics')")
    assert looking.problems == []


def select_row(page: Any, table: str, text: str) -> None:
    page.get_by_test_id(table).locator("tbody tr").filter(has_text=text).locator(".q-checkbox").click()


def test_acls_are_filtered_added_explained_and_removed(sign_in: Any, broker: SecuredKafka) -> None:
    looking = sign_in("alice", "/access")
    page = looking.page
    looking.await_text("acls", "User:vera")
    page.get_by_test_id("open-acl").click()
    page.get_by_test_id("acl-principal").fill("nobody")
    page.get_by_test_id("acl-name").fill("secret")
    page.get_by_test_id("add-acl-now").click()
    looking.await_text("complaint", "'nobody' is not a principal")
    page.get_by_test_id("acl-principal").fill("User:otto")
    page.get_by_test_id("add-acl-now").click()
    looking.await_text("acls", "User:otto")
    page.get_by_test_id("acl-principal-filter").fill("User:otto")
    page.get_by_test_id("acls").get_by_text("User:vera").first.wait_for(state="detached")
    page.wait_for_url("**/console/access?principal=User%3Aotto")
    looking.open("/access?tab=explain&explain.principal=User:otto&explain.name=secret")
    page.get_by_test_id("explain-now").click()
    looking.await_text("explanation", "Allowed: User:otto READ topic secret")
    looking.await_text("explanation", "ALLOW User:otto READ TOPIC:secret from *")
    page.get_by_test_id("explain-name").fill("other")
    page.get_by_test_id("explain-now").click()
    looking.await_text("explanation", "millstream acl add User:otto read --topic other")
    with Cluster(broker.address("PLAINTEXT")) as cluster:
        acls = AclAdmin(cluster)
        (made,) = acls.list(AclSelection(principal="User:otto"))
        assert str(made) == "ALLOW User:otto READ TOPIC:secret from *"
        looking.open("/access?resource=topic&resource_name=secret")
        looking.await_text("acls", "User:otto")
        assert "User:vera" not in looking.text("acls"), "its ACLs are of other topics"
        select_row(page, "acls", "User:otto")
        page.get_by_test_id("remove-acls").click()
        page.get_by_test_id("confirm").click()
        page.get_by_test_id("acls").get_by_text("User:otto").wait_for(state="detached")
        assert acls.list(AclSelection(principal="User:otto")) == []
    assert looking.problems == []


def can_log_in(broker: SecuredKafka, name: str, password: str) -> bool:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
    with Cluster(broker.address("SASL"), login | {"sasl.username": name, "sasl.password": password}) as cluster:
        try:
            return bool(cluster.brokers())
        except WireError:
            return False


def test_users_are_added_changed_and_deleted_and_tokens_expired(sign_in: Any, broker: SecuredKafka) -> None:
    """That the passwords are not in the log: `secured_gateway`."""
    looking = sign_in("alice", "/access?tab=users")
    page = looking.page
    looking.await_text("users", "vera")

    def enter(first: str, again: str, button: str) -> None:
        page.get_by_test_id("user-password").fill(first)
        page.get_by_test_id("user-password-again").fill(again)
        page.get_by_test_id(button).click()

    page.get_by_test_id("open-user").click()
    page.get_by_test_id("user-name").fill("vera")
    enter(*NEW_PASSWORDS, "add-user-now")
    looking.await_text("complaint", "passwords differ")
    enter(NEW_PASSWORDS[0], NEW_PASSWORDS[0], "add-user-now")
    looking.await_text("complaint", "user vera exists")
    page.get_by_test_id("user-name").fill("otto")
    page.get_by_test_id("add-user-now").click()
    looking.await_text("users", "otto")
    assert can_log_in(broker, "otto", NEW_PASSWORDS[0])
    select_row(page, "users", "otto")
    page.get_by_test_id("open-password").click()
    enter(NEW_PASSWORDS[1], NEW_PASSWORDS[1], "change-password-now")
    page.get_by_test_id("change-password").wait_for(state="detached")
    assert can_log_in(broker, "otto", NEW_PASSWORDS[1]) and not can_log_in(broker, "otto", NEW_PASSWORDS[0])
    page.get_by_test_id("delete-users").click()
    page.get_by_test_id("confirm").click()
    page.get_by_test_id("users").get_by_text("otto").wait_for(state="detached")
    assert not can_log_in(broker, "otto", NEW_PASSWORDS[1])
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
    login |= {"sasl.username": "alice", "sasl.password": PASSWORDS["alice"]}
    with Cluster(broker.address("SASL"), login) as cluster:
        token = UserAdmin(cluster).create_token(None, ["User:vera"])
        page.get_by_test_id("tab-tokens").click()
        looking.await_text("tokens", token.token_id)
        assert token.hmac not in page.content()
        select_row(page, "tokens", token.token_id)
        page.get_by_test_id("expire-tokens").click()
        page.get_by_test_id("confirm").click()
        looking.await_text("tokens", "No tokens")
        assert UserAdmin(cluster).tokens() == []
    assert looking.problems == []


def test_a_viewer_sees_acls_and_is_offered_no_change(sign_in: Any) -> None:
    """The cluster lets vera describe the cluster, and so its ACLs; it may not change them."""
    looking = sign_in("vera", "/access")
    looking.await_text("acls", "User:vera")
    assert not looking.page.get_by_test_id("open-acl").is_visible()
    assert looking.page.locator("[data-testid=acls] .q-checkbox").count() == 0
    looking.page.get_by_test_id("tab-users").click()
    looking.await_text("users", "alice")
    for button in ("open-user", "open-password", "delete-users"):
        assert not looking.page.get_by_test_id(button).is_visible(), button
    looking.open("/quotas")
    assert not looking.page.get_by_test_id("open-quota").is_visible()
