"""Tables in a real browser: rows that stay while values change, the state of a view in its URL, saved rows."""

import csv
import io
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow.parquet as parquet
import pytest

from tests.system.console.conftest import TIMEOUT_MS, GatewayProcess, Looking, Traffic

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def shelves(make_topic: Callable[..., str]) -> list[str]:
    """More topics than one page of a table has."""
    return [make_topic(f"shelf-{number:02d}", 1, 1) for number in range(27)]


def query(page: Any) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(page.url).query).items()}


def names(page: Any) -> list[str]:
    return list(page.get_by_test_id("topics").locator("tbody a.ms-row-link").all_inner_texts())


def test_a_row_keeps_its_elements_focus_and_selection_while_its_values_change(
    looking: Looking, traffic: Traffic, make_topic: Callable[..., str]
) -> None:
    make_topic("quiet", 1)
    page = looking.open("/topics?sort=-rate")
    page.locator("tbody a.ms-row-link", has_text=re.compile("^orders$")).wait_for()
    page.keyboard.press("j")
    page.evaluate("""() => {
        const link = [...document.querySelectorAll("tbody a.ms-row-link")].find((each) => each.innerText === "orders");
        const row = link.closest("tr");
        window.kept = {row, link, before: row.innerText, focused: document.activeElement};
        document.getSelection().selectAllChildren(link.closest("td"));
    }""")
    page.wait_for_function("kept.row.isConnected && kept.row.innerText !== kept.before")
    assert page.evaluate(
        "[kept.row.querySelector('a.ms-row-link') === kept.link, document.activeElement === kept.focused]"
    ) == [
        True,
        True,
    ]
    assert page.evaluate("document.getSelection().toString().trim()").startswith("orders")


def test_filter_sort_and_page_are_in_the_url(looking: Looking, shelves: list[str]) -> None:
    page = looking.open("/topics")
    page.locator("[data-filter]").fill("shelf")
    page.wait_for_function("new URLSearchParams(location.search).get('filter') === 'shelf'")
    page.get_by_role("columnheader", name="Topic").click()
    page.wait_for_function("document.querySelector('tbody a.ms-row-link').innerText === 'shelf-26'")
    assert query(page) == {"filter": "shelf", "sort": "-topic"}

    # A copied link, or a reload.
    other = looking.open(f"/topics?{urlsplit(page.url).query}&rows=25&page=2")
    other.wait_for_function("document.querySelector('tbody a.ms-row-link')?.innerText === 'shelf-01'")
    assert names(other) == ["shelf-01", "shelf-00"]
    assert other.locator("[data-filter]").input_value() == "shelf"
    # What the URL cannot mean is left out.
    looking.open("/topics?sort=nonsense&rows=7&page=-3&filter=shelf-1")
    page.wait_for_function("document.querySelector('tbody a.ms-row-link')?.innerText === 'shelf-10'")


def test_the_back_button_leads_to_the_view_before(looking: Looking, shelves: list[str]) -> None:
    page = looking.open("/topics?filter=shelf-07")
    page.get_by_test_id("topics").get_by_text("shelf-07").click()
    page.get_by_test_id("page-title").filter(has_text="shelf-07").wait_for()
    page.wait_for_function("window.socket?.connected")
    page.get_by_test_id("tab-settings").click()
    page.get_by_test_id("settings").get_by_text("retention.ms", exact=True).wait_for()
    assert query(page) == {"topic": "shelf-07", "tab": "settings"}
    page.reload()
    page.get_by_test_id("settings").get_by_text("retention.ms", exact=True).wait_for()
    page.go_back()
    page.get_by_test_id("layout").wait_for()
    page.go_back()
    page.wait_for_function("document.querySelector('tbody a.ms-row-link')?.innerText === 'shelf-07'")
    assert names(page) == ["shelf-07"]


def test_a_long_name_is_cut_and_moves_no_column(looking: Looking, make_topic: Callable[..., str]) -> None:
    short = make_topic("cupboard", 1, 1)  # other tests count the shelves
    places = "[...document.querySelectorAll('thead th')].map((each) => Math.round(each.getBoundingClientRect().x))"
    page = looking.open("/topics?filter=cupboard")
    page.locator(f"tbody a.ms-row-link[title='{short}']").wait_for()
    before = page.evaluate(places)
    name = make_topic(
        "cupboard.of-a-department-with-a-long-name.of-a-department-with-a-long-name.of-a-department-with-a-lo"
        "ng-name.of-a-department-with-a-long-name.of-a-department-with-a-long-name",
        1,
        1,
    )
    page = looking.open("/topics?filter=cupboard")
    link = page.locator(f"tbody a.ms-row-link[title='{name}']")
    link.wait_for()
    assert len(before) > 3 and page.evaluate(places) == before
    assert link.evaluate("(each) => each.scrollWidth > each.clientWidth"), "all of it would not fit"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_phone_has_cards_and_a_closed_drawer(
    browser: Any, gateway: GatewayProcess, shelves: list[str], make_topic: Callable[..., str]
) -> None:
    name = make_topic("a-name-that-is-longer-than-the-screen-of-a-phone-is-wide.and-then-some.v1", 1, 1)
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
    context.set_default_timeout(TIMEOUT_MS)
    try:
        looking = Looking(context.new_page(), gateway.url)
        page = looking.open("/topics?filter=then-some")
        page.locator(".ms-row-card").get_by_text(name).wait_for()
        assert page.get_by_test_id("topics").locator("table").count() == 0
        paths = ["/topics?filter=then-some", f"/topics?topic={name}", "/", "/cluster", "/connect", "/mirrors"]
        for path in (*paths, "/brokers", "/brokers?broker=1", "/reassignments"):
            looking.open(path)
            if path.startswith("/brokers"):
                looking.await_text("broker-settings", "while running")
            page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")
        menu = page.get_by_role("navigation", name="Pages")
        assert not menu.is_visible() or menu.bounding_box()["x"] < 0
        page.get_by_role("button", name="Navigation").click()
        page.wait_for_function("document.querySelector('nav').getBoundingClientRect().x >= 0")
        assert looking.problems == []
    finally:
        context.close()


def test_rows_are_saved_as_they_are_filtered(looking: Looking, shelves: list[str]) -> None:
    page = looking.open("/topics?filter=shelf&sort=-topic")
    page.get_by_test_id("topics").get_by_text("shelf-26").wait_for()
    saved = {}
    for label, extension in (("JSON", "json"), ("CSV", "csv"), ("Parquet", "parquet")):
        page.get_by_test_id("export-topics").click()
        with page.expect_download() as waiting:
            page.get_by_role("menuitem", name=label).or_(page.locator(".q-menu .q-item", has_text=label)).first.click()
        assert waiting.value.suggested_filename == f"topics.{extension}"
        saved[extension] = waiting.value.path().read_bytes()
        page.locator(".q-menu").wait_for(state="detached")
    wanted = list(reversed(shelves))
    assert [row["topic"] for row in json.loads(saved["json"])] == wanted
    assert json.loads(saved["json"])[0]["partitions"] == 1
    assert [row["topic"] for row in csv.DictReader(io.StringIO(saved["csv"].decode()))] == wanted
    table = parquet.read_table(io.BytesIO(saved["parquet"]))
    assert table["topic"].to_pylist() == wanted
    assert str(table.schema.field("partitions").type) == "int64"


def test_a_link_and_a_value_are_copied(looking: Looking, shelves: list[str]) -> None:
    looking.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = looking.open("/topics?filter=shelf-03")
    row = page.get_by_test_id("topics").locator("tbody tr").first
    row.get_by_text("shelf-03").wait_for()
    page.get_by_test_id("copy-link").click()
    page.wait_for_function("navigator.clipboard.readText().then(text => text === location.href)")
    row.hover()
    row.get_by_role("button", name="Copy", exact=True).click()
    page.wait_for_function("navigator.clipboard.readText().then(text => text === 'shelf-03')")
