"""deploy/: each query of the dashboard and of the alerts, against a broker that runs and Prometheus' own engine."""

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from millstream.gateway.metrics import FAMILIES as GATEWAY
from millstream.node.metrics.endpoints import families
from millstream.testing import EmbeddedBroker
from millstream.testing.node_process import free_ports
from tests.integration.node.metrics.conftest import ONLY_WITH_A_LINK, ONLY_WITH_TLS, Scrape
from tests.integration.node.metrics.queries import (
    DEPLOY,
    FROM_PROMETHEUS,
    RULES,
    alert_queries,
    dashboard,
    named_in,
    panel_queries,
    variable_queries,
)
from tests.waiting import TIMEOUT_SECONDS
from tools.apache_kafka import ToolchainMissingError
from tools.install_test_clients import prometheus as installed

PANELS, ALERTS = panel_queries(), alert_queries()
DEPENDS_ON_THE_MACHINE = {
    "MillstreamDiskFull",
    "MillstreamDiskFullSoon",
    "MillstreamEventLoopLag",
    "MillstreamGroupWithoutMembers",  # the group of the traffic has left, with records behind
    "MillstreamSlowDisk",
    "MillstreamSlowProduce",
}
ONLY_WITH_A_FAULT = {
    "millstream_partition_unreadable_batch",
    "millstream_client_metric",
    "millstream_client_metrics_refused_total",
    *ONLY_WITH_TLS,
    *ONLY_WITH_A_LINK,
}
"""Metrics that have no sample where all is well, without TLS, mirrors and pushes: their labels are as declared."""


# Names and labels


def test_every_metric_and_label_of_every_query_is_on_the_page(scrape: Scrape) -> None:
    page = scrape()
    labels: dict[str, set[str]] = {"up": set()}
    for family in page.families.values():
        for (sample, has), _ in family.samples.items():
            labels.setdefault(sample, set()).update(name for name, _ in has)
    for each in families():
        if each.name in ONLY_WITH_A_FAULT:
            assert each.name not in labels, "there is no fault"
            labels[each.name] = set(each.labels)
    labels |= {each.name: set(each.labels) for each in GATEWAY}  # of another process
    for title, expression in {**PANELS, **ALERTS}.items():
        for metric, wanted in named_in(expression):
            assert metric in labels, f"{title}: there is no {metric}"
            assert wanted <= labels[metric] | FROM_PROMETHEUS, f"{title}: {metric} has no {wanted - labels[metric]}"


def rates_of_gauges(expression: str, kinds: Mapping[str, str]) -> set[str]:
    """A gauge goes down as well: `rate` would take that for a restart."""
    return {
        name for name in re.findall(r"\b(?:rate|irate|increase)\(\s*(\w+)", expression) if kinds.get(name) == "gauge"
    }


def test_no_query_takes_the_rate_of_a_gauge() -> None:
    kinds = {each.name: each.kind for each in (*families(), *GATEWAY)}
    assert rates_of_gauges("sum(rate(millstream_tier_lag_bytes{a='b'}[5m]))", kinds) == {"millstream_tier_lag_bytes"}
    for title, expression in {**PANELS, **ALERTS}.items():
        assert not rates_of_gauges(expression, kinds), title


def test_the_check_of_names_would_notice() -> None:
    expression = 'sum by (topic) (rate(some_total{a="x}",b=~"y"}[5m])) / on (job) other > bool 3'
    assert named_in(expression) == [("some_total", {"a", "b", "topic", "job"}), ("other", {"topic", "job"})]


def test_every_metric_is_on_a_panel_or_in_an_alert_or_left_out_on_purpose() -> None:
    left_out = {
        "millstream_build_info",
        "millstream_open_logs",
        "millstream_compacted_logs",
        "millstream_compaction_dirty_bytes",
        "millstream_compaction_running",
        "millstream_partition_high_watermark",
        "millstream_partition_in_sync_replicas",
        "millstream_partition_log_bytes",
        "millstream_partition_log_end_offset",
        "millstream_partition_log_start_offset",
        "millstream_quorum_role",
        "millstream_quorum_voter",
        "millstream_quorum_voters",
        "millstream_replication_throttle_limit_bytes_per_second",
        "millstream_request_memory_limit_bytes",
        "process_virtual_memory_bytes",
    }
    named = {metric for query in (*PANELS.values(), *ALERTS.values()) for metric, _ in named_in(query)}
    unused = {
        each.name for each in (*families(), *GATEWAY) if not any(metric.startswith(each.name) for metric in named)
    }
    assert unused == left_out - named


def test_a_failed_log_directory_is_on_a_panel() -> None:
    shown = {metric for query in PANELS.values() for metric, _ in named_in(query)}
    assert {"millstream_log_directory_offline", "millstream_cluster_brokers_with_offline_log_directory"} <= shown


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)


def test_every_alert_says_what_it_is_about() -> None:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("page", "ticket") and rule["annotations"]["summary"], rule


# Prometheus itself


class Prometheus:
    def __init__(self, address: str) -> None:
        self.address = address

    def get(self, path: str, **query: str) -> Any:
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:
                raise ConnectionError("it is starting") from None
            raise AssertionError(f"{query}: {error.read().decode()}") from None

    def query(self, expression: str) -> list[Any]:
        found: list[Any] = self.get("query", query=expression)["result"]
        return found


@pytest.fixture(scope="module")
def prometheus(busy_broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    try:
        command = installed().command
    except ToolchainMissingError as reason:
        pytest.skip(f"Prometheus is not to be had: {reason}")
    directory = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [busy_broker.bootstrap_servers]
    partitions = {"job_name": "millstream-partitions", "params": {"collect[]": ["partitions"]}}
    config["scrape_configs"].append(config["scrape_configs"][0] | partitions)  # as the comment in the file says
    config["rule_files"] = [str(RULES)]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    (port,) = free_ports(1)
    arguments = [f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen([*command, *arguments, f"--web.listen-address=127.0.0.1:{port}"], stderr=log)
    try:
        running = Prometheus(f"127.0.0.1:{port}")
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                if int(running.query("count_over_time(millstream_build_info[1m])")[0]["value"][1]) >= 4:
                    break
            except (OSError, LookupError):
                assert process.poll() is None, (directory / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, (directory / "log").read_text()[-2000:]
            time.sleep(0.25)
        yield running
    finally:
        process.terminate()
        process.wait(TIMEOUT_SECONDS)


@pytest.mark.timeout(300)
def test_every_panel_shows_something(prometheus: Prometheus) -> None:
    for title, expression in PANELS.items():
        assert prometheus.query(expression), f"{title}: nothing for {expression}"


def test_every_variable_has_values(prometheus: Prometheus) -> None:
    for name, query in variable_queries().items():
        selector, _, label = query.removeprefix("label_values(").removesuffix(")").rpartition(",")
        assert prometheus.get(f"label/{label.strip()}/values", **{"match[]": selector.strip()}), name


def test_every_alert_can_be_evaluated_and_none_fires_without_reason(prometheus: Prometheus) -> None:
    groups = prometheus.get("rules")["groups"]
    rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert rules.keys() == ALERTS.keys()
    for name, rule in rules.items():
        assert rule["health"] in ("ok", "unknown") and not rule.get("lastError"), rule
        found = prometheus.query(ALERTS[name])
        assert not found or name in DEPENDS_ON_THE_MACHINE, (name, found)


def test_lag_can_be_had_from_the_leaders_offsets_as_the_docs_say(prometheus: Prometheus) -> None:
    found = re.search(r"`(max by \(topic, partition\) [^`]+)`", (DEPLOY.parent / "docs" / "metrics.md").read_text())
    assert found is not None
    told = prometheus.query('millstream_group_lag_records{group="billing"}')
    joined = prometheus.query(found[1])
    assert told
    for row in told:
        at = {name: row["metric"][name] for name in ("group", "topic", "partition")}
        assert [each["value"][1] for each in joined if each["metric"] == at] == [row["value"][1]], at


def test_the_target_is_up_and_nothing_was_lost_on_the_way(prometheus: Prometheus) -> None:
    targets = prometheus.get("targets")["activeTargets"]
    assert [(target["health"], target["lastError"]) for target in targets] == [("up", "")] * 2


def test_promtool_accepts_the_files_and_alerts_fire_when_they_should() -> None:
    try:
        installed()
    except ToolchainMissingError as reason:
        pytest.skip(f"promtool is not to be had: {reason}")
    for command in (
        ["check", "config", str(DEPLOY / "prometheus" / "prometheus.yml")],
        ["check", "rules", str(RULES)],
        ["test", "rules", str(Path(__file__).parent / "alerts.test.yml")],
    ):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
