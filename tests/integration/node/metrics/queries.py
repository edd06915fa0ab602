"""The queries of deploy/: those of the dashboard's panels and of the alerts, and what metrics and labels they name."""

import json
import re
from typing import Any

import yaml

from tests.repository import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
DASHBOARD = DEPLOY / "grafana" / "millstream.json"
RULES = DEPLOY / "prometheus" / "millstream.rules.yml"

_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_RANGE = re.compile(r"\[[^\]]*\]|\boffset\s+\w+")
_OPERATORS = {"and", "or", "unless", "bool"}
FROM_PROMETHEUS = {"job", "instance"}


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def panel_queries() -> dict[str, str]:
    """Each target of each panel, with the dashboard's variables as Grafana would fill them in."""
    found = {}
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            found[f"{panel['id']} {panel['title']} {target['refId']}"] = filled_in(target["expr"])
    return found


def variable_queries() -> dict[str, str]:
    """What a variable's values are taken from: `label_values(SELECTOR, LABEL)`."""
    variables = [each for each in dashboard()["templating"]["list"] if each["type"] == "query"]
    return {each["name"]: filled_in(each["query"]["query"]) for each in variables}


def alert_queries() -> dict[str, str]:
    rules = yaml.safe_load(RULES.read_text())
    return {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}


def filled_in(expression: str) -> str:
    for variable, value in {"$__rate_interval": "1m", "$__interval": "1m"}.items():
        expression = expression.replace(variable, value)
    return re.sub(r"\$\w+", ".*", expression)


def named_in(expression: str) -> list[tuple[str, set[str]]]:
    """The metrics in an expression, each with the labels that it is asked for; groupings count for all of them."""
    groupings = {label.strip() for _, labels in _GROUPING.findall(expression) for label in labels.split(",")} - {""}
    rest = _GROUPING.sub(" ", _RANGE.sub(" ", expression))
    metrics = []
    for word in _WORD.finditer(_outside_braces(rest)):
        after = rest[word.end() :].lstrip()
        if word.group() in _OPERATORS or after.startswith("("):
            continue
        selector = after[1 : _end_of_braces(after)] if after.startswith("{") else ""
        labels = set(_WORD.findall(_TEXT.sub(" ", selector)))
        metrics.append((word.group(), labels | groupings))
    assert metrics, f"no metric in {expression}"
    return metrics


def _outside_braces(text: str) -> str:
    """The same length, with blanks for what is in braces or quotes."""
    blank = _TEXT.sub(lambda found: " " * len(found.group()), text)
    return re.sub(r"\{[^}]*\}", lambda found: " " * len(found.group()), blank)


def _end_of_braces(text: str) -> int:
    return _TEXT.sub(lambda found: "x" * len(found.group()), text).index("}")
