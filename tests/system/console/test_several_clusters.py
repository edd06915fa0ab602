"""One console for several clusters: the cluster is in the URL, each has its own data, rights and masks, and one that is
down or refuses a user does not harm the others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from millstream.cli.gateway_process import named_clusters
from millstream.gateway.http.configuration import GatewayError
from millstream.raw_client import Cluster
from millstream.testing import EmbeddedBroker, EmbeddedCluster
from millstream.testing.node_process import free_ports
from tests.integration.raw_client.kafka_with_security import SecuredKafka, secured_millstream
from tests.system.console.conftest import SIZE, TIMEOUT_MS, GatewayProcess, Looking
from tests.topics import make_topic

pytestmark = pytest.mark.timeout(300)
PEOPLE = "basic ann:ann-secret\nbasic root:root-secret\n"
MAIN_ACCESS = """
[roles]
users = { ann = "viewer", root = "admin" }
[[masks]]
topics = ["cards"]
fields = ["value.number"]
visible_to = "admin"
"""
EAST_ACCESS = '[roles]\nusers = { ann = "admin" }\n'
SCHEMA = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}'


@pytest.fixture(scope="module")
def east(chromium: str) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture(scope="module")
def clusters(
    cluster: EmbeddedCluster, east: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """main, east, and one without a broker."""
    directory = tmp_path_factory.mktemp("clusters")
    files = {"people": PEOPLE, "main.toml": MAIN_ACCESS, "east.toml": EAST_ACCESS}
    for name, text in files.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o600)
    for name in ("cards", "only-main"):
        make_topic(cluster, name, 1, 1)
    with Cluster(east.bootstrap_servers) as raw:
        for name in ("cards", "only-east"):
            raw.create_topic(name, 1, 1)
    for running in (cluster, east):
        producer = Producer({"bootstrap.servers": running.bootstrap_servers})
        producer.produce("cards", b'{"number": "4711-0815"}')
        assert producer.flush(30) == 0
    options = ["--auth-file", str(directory / "people"), "--access-file", str(directory / "main.toml")]
    options += ["--cluster", f"east={east.bootstrap_servers}", "--cluster-access", f"east={directory / 'east.toml'}"]
    options += ["--cluster", f"gone=127.0.0.1:{free_ports(1)[0]}"]
    running_gateway = GatewayProcess(cluster.bootstrap_servers, directory / "gateway.log", *options)
    yield running_gateway
    running_gateway.stop()
    log = (directory / "gateway.log").read_text()
    assert "Traceback" not in log, log[-3000:]


@pytest.fixture
def visit(browser: Any, clusters: GatewayProcess) -> Iterator[Looking]:
    login = {"username": "ann", "password": "ann-secret"}
    context = browser.new_context(viewport=SIZE, color_scheme="light", http_credentials=login)
    context.set_default_timeout(TIMEOUT_MS)
    yield Looking(context.new_page(), clusters.url)
    context.close()


def test_the_chosen_cluster_is_in_the_url_and_pages_show_it(visit: Looking, clusters: GatewayProcess) -> None:
    page = visit.open("/topics?filter=only")
    assert page.url == f"{clusters.url}/console/clusters/main/topics?filter=only"
    visit.await_text("topics", "only-main")
    visit.await_text("user", "ann · viewer")
    assert not page.get_by_test_id("open-create").is_visible()
    page.get_by_test_id("cluster").click()
    page.get_by_test_id("clusters").get_by_text("east").click()
    page.wait_for_url("**/console/clusters/east/topics")
    visit.await_text("topics", "only-east")
    visit.await_text("user", "ann · admin")
    assert "only-main" not in visit.text("topics")
    page.get_by_text("only-east").first.click()
    page.wait_for_url("**/console/clusters/east/topics?topic=only-east")
    visit.await_text("topic-partitions", "1")
    page.get_by_test_id("cluster").filter(has_text="east").wait_for()
    page.locator("[data-go=m]").click()
    page.wait_for_url("**/console/clusters/east/messages")
    assert visit.problems == []


def test_a_cluster_that_is_down_says_so_and_the_others_go_on(visit: Looking) -> None:
    visit.open("/clusters/gone/")
    visit.await_text("health", "No broker responds")
    visit.open("/clusters/east/topics")
    visit.await_text("topics", "only-east")
    visit.await_text("health", "Healthy")


def test_masks_and_schemas_are_those_of_the_cluster(visit: Looking, clusters: GatewayProcess) -> None:
    page = visit.open("/clusters/main/messages?topic=cards")
    page.get_by_text("***").first.wait_for()
    assert "4711" not in page.content()
    page = visit.open("/clusters/east/messages?topic=cards")
    page.get_by_text("4711-0815").first.wait_for()
    auth = ("root", "root-secret")
    made = httpx.post(f"{clusters.url}/subjects/of-main/versions", json={"schema": SCHEMA}, auth=auth, timeout=60)
    assert made.status_code == 200, made.text
    visit.open("/clusters/main/schemas")
    visit.await_text("subjects", "of-main")
    visit.open("/clusters/east/schemas")
    visit.await_text("subjects", "No schemas")
    assert visit.problems == []


def test_programs_use_the_first_cluster_and_unknown_clusters_are_explained(clusters: GatewayProcess) -> None:
    with httpx.Client(base_url=clusters.url, auth=("ann", "ann-secret"), timeout=60) as http:
        names = {topic["name"] for topic in http.get("/topics").json()["topics"]}
        assert "only-main" in names and "only-east" not in names
        missing = http.get("/console/clusters/west/topics", headers={"Accept": "text/html"})
        assert missing.status_code == 404 and "no cluster &#x27;west&#x27;" in missing.text
        assert '<a href="/console/clusters/east/">east</a>' in missing.text
        assert http.get("/console/clusters/west/topics").json()["error_code"] == 404
    assert httpx.get(f"{clusters.url}/console/clusters/east/", timeout=60).status_code == 401


@pytest.fixture(scope="module")
def secured(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SecuredKafka, SecuredKafka]]:
    """vera is a user of the first cluster alone, otto of the second."""
    with (
        secured_millstream(tmp_path_factory.mktemp("first")) as first,
        secured_millstream(tmp_path_factory.mktemp("second")) as second,
    ):
        for kafka in (first, second):
            kafka.add_user("alice", "wonder")
        first.add_user("vera", "vera-secret")
        second.add_user("otto", "otto-secret")
        with Cluster(second.address("PLAINTEXT")) as cluster:
            cluster.create_topic("only-second", 1, 1)
        yield first, second


def test_each_cluster_decides_which_users_it_accepts(
    browser: Any, secured: tuple[SecuredKafka, SecuredKafka], tmp_path: Path
) -> None:
    first, second = secured
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\nsasl.username=alice\nsasl.password=wonder\n"
    )
    file.chmod(0o600)
    options = ["--command-config", str(file), "--pass-through", "SCRAM-SHA-256", "--cluster-name", "first"]
    options += ["--cluster", f"second={second.address('SASL')}", "--cluster-config", f"second={file}"]
    gateway = GatewayProcess(first.address("SASL"), tmp_path / "gateway.log", *options)
    context = browser.new_context(viewport=SIZE, color_scheme="light")
    context.set_default_timeout(TIMEOUT_MS)
    try:
        page = context.new_page()
        visit = Looking(page, gateway.url)

        def sign_in(user: str, password: str, cluster: str) -> None:
            page.goto(f"{gateway.url}/console/sign-in")
            page.fill("input[name=name]", user)
            page.fill("input[name=password]", password)
            page.select_option("select[name=cluster]", cluster)
            page.click("button[type=submit]")

        sign_in("vera", "vera-secret", "second")
        page.get_by_text("Name or password is wrong.").wait_for()
        sign_in("vera", "vera-secret", "first")
        visit.await_text("user", "vera")
        assert page.url.partition("?")[0] == f"{gateway.url}/console/clusters/first/"  # an empty cluster adds its tool
        page.goto(f"{gateway.url}/console/clusters/second/topics")
        page.get_by_text("the cluster second does not accept vera").wait_for()
        page.get_by_role("link", name="first").click()
        visit.await_text("user", "vera")  # the session goes on
        visit.problems.clear()  # the browser reports the 401 and the 403
        sign_in("otto", "otto-secret", "second")
        visit.await_text("user", "otto")
        visit.open("/clusters/second/access?tab=users")
        assert visit.problems == [], "nothing of the page comes from a cluster that does not accept the user"
        sign_in("alice", "wonder", "second")
        visit.await_text("user", "alice")
        visit.open("/clusters/second/topics")
        visit.await_text("topics", "only-second")
    finally:
        context.close()
        gateway.stop()
    log = (tmp_path / "gateway.log").read_text()
    assert "Traceback" not in log and "wonder" not in log and "-secret" not in log


@pytest.mark.parametrize(
    ("clusters_", "configs", "access", "says"),
    [
        (["east"], [], [], "--cluster east: write NAME=HOST:PORT"),
        (["a/b=x:1"], [], [], "a name has up to 64 letters"),
        (["main=x:1"], [], [], "the first cluster"),
        (["east=x:1", "east=y:1"], [], [], "is given twice"),
        (["east=x:1"], ["west=f"], [], "there is no --cluster west=HOST:PORT"),
        (["east=x:1"], ["east=/nowhere"], [], "--cluster-config"),
        (["east=x:1"], [], ["east=/nowhere"], "--cluster-access"),
    ],
)
def test_mistakes_in_the_options_are_explained(
    clusters_: list[str], configs: list[str], access: list[str], says: str
) -> None:
    with pytest.raises(GatewayError) as failed:
        named_clusters("main", clusters_, configs, access)
    assert says in str(failed.value)
