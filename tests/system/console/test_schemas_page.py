"""Schemas in a real browser: registering, versions side by side, checks, levels, deleting."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.system.console.conftest import Looking, choose

pytestmark = pytest.mark.timeout(300)


def order(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, *fields]})


OPTIONAL = {"name": "note", "type": ["null", "string"], "default": None}
REQUIRED = {"name": "total", "type": "double"}


def test_a_subject_from_its_first_schema_to_its_deletion(looking: Looking, screenshot: Callable[..., None]) -> None:
    page = looking.open("/schemas")
    page.get_by_test_id("open-register").click()
    page.get_by_test_id("register").click()
    looking.await_text("banner", "enter a subject")
    page.get_by_test_id("new-subject").fill("console-orders-value")
    page.get_by_test_id("schema-text").fill('{"type": "record"}')
    page.get_by_test_id("register").click()
    looking.await_text("verdict", "Invalid schema")
    page.get_by_test_id("schema-text").fill(order())
    page.get_by_test_id("register").click()
    looking.await_text("page-title", "console-orders-value")

    looking.await_text("level-help", "BACKWARD")
    page.get_by_test_id("schema-text").fill(order(REQUIRED))
    page.get_by_test_id("check").click()
    looking.await_text("verdict", "The schema is not compatible")
    looking.await_text("verdict", "total")
    page.get_by_test_id("schema-text").fill(order(OPTIONAL))
    page.get_by_test_id("check").click()
    looking.await_text("verdict", "The schema is compatible")
    page.get_by_test_id("register").click()
    looking.await_text("diff-note", "added")
    looking.await_text("diff", '"name": "note"')
    assert page.locator(".ms-diff .ms-came").count() > 3
    screenshot("schema", "/schemas?subject=console-orders-value", lambda tab: tab.get_by_text("added").first.wait_for())

    choose(page, page.get_by_test_id("level"), "NONE", exact=True)
    looking.await_text("level-help", "NONE: No check")
    page.get_by_test_id("schema-text").fill(order(REQUIRED))
    page.get_by_test_id("register").click()
    looking.await_text("verdict", "Version 3 of console-orders-value")
    looking.await_text("versions", "3")
    choose(page, page.get_by_test_id("after"), "version 2")
    choose(page, page.get_by_test_id("before"), "version 1")
    page.wait_for_function("location.search.includes('before=1') && location.search.includes('after=2')")
    page.reload()  # the URL has the versions
    looking.await_text("diff", '"name": "note"')

    page.get_by_test_id("versions").get_by_text("delete", exact=True).first.click()
    page.locator(".ms-dialog").get_by_text("version 3 with id").wait_for()
    page.get_by_test_id("confirm").click()
    looking.await_text("versions", "deleted")

    page.get_by_test_id("delete-subject").click()
    asked = page.locator(".ms-dialog").filter(has_text="Delete console-orders-value?").inner_text()
    assert "version 1 with id" in asked and "version 2 with id" in asked and "version 3 with id" not in asked
    page.get_by_test_id("confirm").click()
    page.wait_for_url("**/schemas")
    page.get_by_test_id("deleted").click()
    looking.await_text("subjects", "console-orders-value")
    page.wait_for_function("location.search.includes('deleted=true')")
    page.reload()
    looking.await_text("subjects", "console-orders-value")
    screenshot("schemas", "/schemas")
