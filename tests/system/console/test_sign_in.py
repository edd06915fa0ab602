"""Single sign-on by OpenID Connect in a real browser, and what a viewer can see of a topic with masked fields."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer

from millstream.testing import EmbeddedCluster
from tests.oidc import Provider
from tests.system.console.conftest import SIZE, TIMEOUT_MS, GatewayProcess, Looking
from tests.waiting import TIMEOUT_SECONDS

pytestmark = pytest.mark.timeout(300)
ACCESS = """
[roles]
users = { ann = "viewer", ada = "admin" }
groups = { operators = "operator" }
[[masks]]
topics = ["masked-pay"]
fields = ["value.card.number", "key", "headers.authorization"]
"""
CARDS = ("4111-0000", "4222-0000")


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    running = Provider(asks=True)
    yield running
    running.close()
    assert running.complaints == [], "the client made a mistake"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("signed")


@pytest.fixture(scope="module")
def signed(cluster: EmbeddedCluster, provider: Provider, directory: Path) -> Iterator[GatewayProcess]:
    rules = directory / "access.toml"
    rules.write_text(ACCESS + provider.access_rules())
    rules.chmod(0o600)
    running = GatewayProcess(cluster.bootstrap_servers, directory / "gateway.log", "--access-file", str(rules))
    yield running
    running.stop()
    log = (directory / "gateway.log").read_text()
    assert "Traceback" not in log, log[-3000:]


@pytest.fixture
def visit(browser: Any, signed: GatewayProcess, provider: Provider) -> Iterator[Callable[..., Looking]]:
    """Opens a page as a new visitor, who gives this name at the provider."""
    contexts = []

    def enter(user: str, path: str = "") -> Looking:
        context = browser.new_context(viewport=SIZE, color_scheme="light")
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        looking = Looking(page, signed.url)
        page.goto(f"{signed.url}/console{path}")
        assert "/console/sign-in?next=" in page.url, "nothing is shown without a sign-in"
        page.get_by_text("Sign in with single sign-on").click()
        page.wait_for_url(f"{provider.issuer}/auth?**")
        page.fill("input[name=user]", user)
        page.click("button[type=submit]")
        page.wait_for_url(f"{signed.url}/**")
        return looking

    yield enter
    for context in contexts:
        context.close()
    provider.change, provider.refuses, provider.groups = lambda claims: claims, "", ["people"]


def ready(looking: Looking) -> Any:
    looking.page.wait_for_selector("[data-testid=page-title]")
    looking.page.wait_for_function("window.socket?.connected")
    return looking.page


def test_a_person_signs_in_comes_back_to_the_page_and_signs_out(
    visit: Callable[..., Looking], signed: GatewayProcess
) -> None:
    looking = visit("ann", "/topics?topic=masked-pay")
    page = ready(looking)
    assert page.url == f"{signed.url}/console/topics?topic=masked-pay"
    looking.await_text("user", "ann · viewer")
    (cookie,) = [each for each in page.context.cookies() if each["name"] == "millstream_session"]
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Lax", "/console")
    # The session opens the console only, and only in this browser.
    assert page.request.get(f"{signed.url}/topics").status == 401
    page.get_by_test_id("sign-out").click()
    page.get_by_text("Signed in as ann").wait_for()
    page.click("button[type=submit]")
    page.wait_for_url(f"{signed.url}/console/sign-in")
    page.goto(f"{signed.url}/console/topics")
    assert "/console/sign-in?next=" in page.url
    kept = httpx.get(
        f"{signed.url}/console/topics", cookies={"millstream_session": cookie["value"]}, headers={"Accept": "text/html"}
    )
    assert kept.status_code == 303, "a cookie that someone kept is worth nothing"


def test_a_page_that_stays_open_after_the_sign_out_reads_nothing(
    visit: Callable[..., Looking], signed: GatewayProcess
) -> None:
    looking = visit("ann", "/messages")
    page = ready(looking)
    other = page.context.new_page()
    other.goto(f"{signed.url}/console/sign-out")
    other.click("button[type=submit]")
    other.wait_for_url(f"{signed.url}/console/sign-in")
    page.get_by_test_id("show").click()
    page.get_by_text("your session has ended").or_(page.get_by_text("Sign in with single sign-on")).first.wait_for()


def test_groups_of_the_token_give_roles(visit: Callable[..., Looking], provider: Provider) -> None:
    provider.groups = ["operators"]
    looking = visit("otto")
    ready(looking)
    looking.await_text("user", "otto · operator")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"nonce": "of-another-sign-in"}, "belongs to another sign-in"),
        ({"aud": "another-client"}, "is for another client"),
        ({"exp": 1}, "is expired"),
        ({"iss": "https://evil.example"}, "is from another issuer"),
    ],
)
def test_a_wrong_id_token_is_refused_with_a_clear_page(
    visit: Callable[..., Looking], provider: Provider, change: dict[str, Any], text: str
) -> None:
    provider.change = lambda claims: claims | change
    looking = visit("ada", "/topics")
    page = looking.page
    page.get_by_role("alert").get_by_text(text).wait_for()
    assert "Single sign-on failed" in page.inner_text("[role=alert]")
    assert not [each for each in page.context.cookies() if each["name"] == "millstream_session"]
    page.get_by_text("Sign in with single sign-on").wait_for()  # try again


def test_a_refusal_of_the_provider_is_shown_and_logged(
    visit: Callable[..., Looking], provider: Provider, directory: Path
) -> None:
    provider.refuses = "access_denied"
    page = visit("ann").page
    page.get_by_role("alert").get_by_text("the provider refused: 'access_denied'").wait_for()
    assert "sign_in_failed address=127.0.0.1" in (directory / "gateway.log").read_text()


def test_a_state_of_another_browser_is_refused(
    browser: Any, visit: Callable[..., Looking], signed: GatewayProcess, provider: Provider
) -> None:
    """Login CSRF: a victim follows a link with a code and a state of the attacker's own sign-in."""
    begun = httpx.get(f"{signed.url}/console/sign-in/start")
    granted = httpx.get(begun.headers["location"] + "&user=ada")
    context = browser.new_context()
    page = context.new_page()
    page.goto(granted.headers["location"])
    assert "began in this browser" in page.inner_text("[role=alert]")
    assert not [each for each in context.cookies() if each["name"] == "millstream_session"]
    context.close()


def test_who_has_no_role_is_told_so(visit: Callable[..., Looking]) -> None:
    page = visit("mallory").page
    page.get_by_text("mallory has no role here").wait_for()
    page.goto(page.url.partition("/console")[0] + "/console/sign-out")
    page.get_by_text("Signed in as mallory").wait_for()  # and can leave


# Masks


@pytest.fixture(scope="module")
def masked_topic(cluster: EmbeddedCluster, make_topic: Callable[..., str]) -> Callable[[str], None]:
    topic = make_topic("masked-pay", 1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 5})

    def send(card: str) -> None:
        value = {"card": {"number": card, "brand": "visa"}, "shop": "north"}
        headers: list[Any] = [("authorization", b"Bearer secret-header"), ("trace", b"abc")]
        producer.produce(topic, json.dumps(value).encode(), key=f"customer-{card}", headers=headers)
        assert producer.flush(TIMEOUT_SECONDS) == 0

    for card in CARDS:
        send(card)
    # Another shape: a text where an object was expected.
    producer.produce(topic, b'{"card": "4333-0000", "shop": "north"}', key="customer-x")
    assert producer.flush(TIMEOUT_SECONDS) == 0
    return send


def nothing_leaks(page: Any) -> None:
    text = page.content() + page.locator("body").inner_text()
    for secret in ("4111-0", "4222-0", "4333-0", "4444-0", "customer-4", "customer-x", "secret-header"):
        # A longer number in the page, such as a time, may end with the same digits.
        found = re.search(rf"(?<!\d){secret}", text)
        assert found is None, text[max(0, found.start() - 100) : found.end() + 100]


def test_a_viewer_finds_and_sees_nothing_that_is_masked(
    visit: Callable[..., Looking], masked_topic: Callable[[str], None], tmp_path: Path
) -> None:
    looking = visit("ann", "/messages?topic=masked-pay")
    page = ready(looking)
    looking.await_text("status", "3 records")
    looking.await_text("records", '"number":"***"')
    looking.await_text("records", '"card":"***"')
    nothing_leaks(page)
    # A filter is no oracle: it sees what the user sees.
    guesses = [("contains", text) for text in ("4111", "secret-header", "customer-4")]
    for rest in (" == '4111-0000'", ".contains('4')", ".startsWith('4')", " >= '4'"):
        guesses.append(("field", f"value.card.number{rest}"))
    for name, guess in [*guesses, ("field", "value.card.contains('4333')")]:
        page.get_by_test_id(name).fill(guess)
        page.get_by_test_id(name).press("Enter")
        looking.await_text("status", "No records match")
        page.get_by_test_id(name).fill("north" if name == "contains" else "value.shop == 'north'")
        page.get_by_test_id(name).press("Enter")
        looking.await_text("status", "3 records, 3 searched")
        page.get_by_test_id(name).fill("")
    page.get_by_test_id("show").click()
    looking.await_text("status", "3 records, times")
    # The details, in every form, and the saved file.
    page.get_by_test_id("records").locator("tbody tr").last.click()
    for form in ("Tree", "JSON", "Text", "Hex", "Base64"):
        page.get_by_test_id("form").first.get_by_text(form).click()
        page.locator("[data-testid=bytes]:visible").first.wait_for()
        nothing_leaks(page)
    with page.expect_download() as saving:
        page.get_by_text("Save", exact=True).first.click()
    saved = tmp_path / "saved"
    saving.value.save_as(saved)
    assert json.loads(saved.read_bytes()) == {"card": {"number": "***", "brand": "visa"}, "shop": "north"}
    page.get_by_test_id("record-headers").click()
    looking.await_text("headers", "***")
    nothing_leaks(page)
    page.keyboard.press("Escape")
    page.get_by_test_id("record").wait_for(state="hidden")
    # Live.
    page.get_by_test_id("field").fill("")
    page.get_by_test_id("mode").get_by_text("Live").click()
    looking.await_text("status", "Live")
    masked_topic("4444-0000")
    looking.await_text("records", '"shop":"north"')
    nothing_leaks(page)


def test_hot_keys_of_a_masked_topic_are_hidden(
    visit: Callable[..., Looking], masked_topic: Callable[[str], None]
) -> None:
    for _ in range(20):
        masked_topic("4111-0000")
    looking = visit("ann", "/topics?topic=masked-pay")
    page = ready(looking)
    page.get_by_test_id("tab-hot").click()
    looking.await_text("hot-keys", "***")
    nothing_leaks(page)
    looking.open("/messages?topic=__millstream_hot_keys&contains=masked-pay")
    looking.await_text("status", "searched")
    nothing_leaks(page)


def test_an_administrator_sees_all_of_it(visit: Callable[..., Looking], masked_topic: Callable[[str], None]) -> None:
    looking = visit("ada", "/messages?topic=masked-pay&contains=4222-0000")
    ready(looking)
    looking.await_text("user", "ada · admin")
    looking.await_text("records", '"number":"4222-0000"')
