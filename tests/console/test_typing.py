"""What a person has typed is neither lost nor overwritten, however late messages of browser and gateway come."""

import json
import re
import urllib.request
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from tests.console.conftest import GatewayProcess, Looking

pytestmark = pytest.mark.timeout(240)


class Line:
    """The connection of a page with the gateway. It can hold messages back, and lose what the page says."""

    def __init__(self, page: Any) -> None:
        self.holds = False
        self.loses = ""
        """A message of the page that contains this is lost."""
        self.lost = 0
        self._held: list[Any] = []
        self._page_side: Any = None
        page.route_web_socket(re.compile("_nicegui_ws"), self._opened)

    def _opened(self, page_side: Any) -> None:
        self._page_side = page_side
        gateway_side = page_side.connect_to_server()

        def from_page(message: Any) -> None:
            if self.loses and self.loses in str(message):
                self.lost += 1
            else:
                gateway_side.send(message)

        page_side.on_message(from_page)
        gateway_side.on_message(lambda message: self._held.append(message) if self.holds else page_side.send(message))

    def release(self) -> None:
        self.holds = False
        while self._held:
            self._page_side.send(self._held.pop(0))


@pytest.fixture
def line(page: Any) -> Line:
    return Line(page)


def test_a_form_is_sent_as_it_is_shown(looking: Looking, line: Line, admin: AdminClient) -> None:
    page = looking.open("/topics")
    page.get_by_test_id("open-create").click()
    page.get_by_test_id("add-retention.ms").click()
    page.get_by_test_id("value-retention.ms").wait_for()
    line.loses = '"event"'
    page.get_by_test_id("new-name").fill("as-shown")
    page.get_by_test_id("new-partitions").fill("5")
    page.get_by_test_id("value-retention.ms").fill("3600000")
    page.get_by_test_id("value-retention.ms").blur()
    assert line.lost >= 3
    line.loses = ""
    page.get_by_test_id("create").click()
    page.get_by_test_id("page-title").filter(has_text="as-shown").wait_for()
    looking.await_text("topic-partitions", "5")
    page.get_by_test_id("tab-settings").click()
    looking.await_text("settings", "3600000")
    admin.delete_topics(["as-shown"])["as-shown"].result(30)


def test_a_browser_that_is_busy_is_waited_for(looking: Looking) -> None:
    """A page whose connection was given up is loaded anew, and its dialogs are gone."""
    said: list[str] = []
    looking.page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: said.append(str(frame))))
    looking.open("/topics")
    opening = next(json.loads(frame[1:]) for frame in said if frame.startswith("0{"))
    assert opening["pingTimeout"] >= 20_000


def test_a_number_is_not_corrected_while_somebody_types(looking: Looking, line: Line) -> None:
    page = looking.open("/topics")
    page.get_by_test_id("open-create").click()
    field = page.get_by_test_id("new-partitions")
    field.wait_for()
    line.holds = True
    field.fill("0")
    field.blur()
    field.fill("7")
    line.release()
    page.get_by_test_id("add-retention.ms").click()
    page.get_by_test_id("value-retention.ms").wait_for()  # so all that was said before is there, too
    assert field.input_value() == "7"
    field.fill("0")
    page.get_by_test_id("new-name").fill("numbers")
    page.get_by_test_id("create").click()
    looking.await_text("complaint", "say how many partitions")


def test_a_schema_that_arrives_does_not_replace_what_was_typed(
    looking: Looking, line: Line, gateway: GatewayProcess
) -> None:
    body = json.dumps({"schema": '{"type": "record", "name": "Late", "fields": []}'}).encode()
    headers = {"Content-Type": "application/json"}
    urllib.request.urlopen(
        urllib.request.Request(f"{gateway.url}/subjects/late-value/versions", body, headers), timeout=60
    ).close()
    looking.page.goto(f"{gateway.url}/console/schemas?subject=late-value")
    text = looking.page.get_by_test_id("schema-text")
    text.wait_for()
    # Nothing was typed: the last version is put there.
    looking.page.wait_for_function("document.querySelector('[data-testid=schema-text]').value.includes('Late')")
    line.holds = True
    looking.page.goto(f"{gateway.url}/console/schemas?subject=late-value")
    text.fill("mine")
    line.release()
    looking.page.get_by_test_id("versions").get_by_text("1", exact=True).first.wait_for()
    assert text.input_value() == "mine"
