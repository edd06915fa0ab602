"""The docs site: patterns of the navigation, links of the repository, a page that is in no navigation."""

from types import SimpleNamespace
from typing import Any

import pytest
from mkdocs.exceptions import PluginError

from tests.repository import REPOSITORY
from tools import docs_site


def test_a_pattern_takes_the_pages_that_are_not_named() -> None:
    nav = ["index.md", {"Operate": ["cluster.md", "deploy*.md", "backup*.md", {"Tests": ["chaos.md", "bench/*.md"]}]}]
    pages = ["bench/a.md", "chaos.md", "cluster.md", "deploy-pip.md", "deploy/inner.md", "other.md"]
    expected = ["cluster.md", "deploy-pip.md", {"Tests": ["chaos.md", "bench/a.md"]}]
    assert docs_site.expanded(nav, pages) == ["index.md", {"Operate": expected}]


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("README.md", "[design](docs/DESIGN.md#bounds)", "[design](DESIGN.md#bounds)"),
        ("README.md", "![a](docs/console/overview.png)", "![a](console/overview.png)"),
        ("docs/public.md", "[changes](../CHANGELOG.md)", "[changes](changelog.md)"),
        ("docs/deep-dives/isr.md", "[`x`](../DESIGN.md)", "[`x`](../DESIGN.md)"),
        ("docs/DESIGN.md", "[`adr/`](adr/)", "[`adr/`](adr/index.md)"),
        ("docs/DESIGN.md", "[figures](benchmarks/)", "[figures](benchmarks/README.md)"),
        ("docs/metrics.md", "in [`deploy/`](../deploy/):", "in `deploy`:"),
        ("docs/metrics.md", "[the rules](../deploy/prometheus)", "the rules (`deploy/prometheus`)"),
        ("docs/public.md", "[a](https://example.org/x.md) [b](#here)", "[a](https://example.org/x.md) [b](#here)"),
        ("docs/public.md", "```python\nx[0](../CHANGELOG.md)\n```", "```python\nx[0](../CHANGELOG.md)\n```"),
    ],
)
def test_links_lead_to_pages_of_the_site(page: str, text: str, expected: str) -> None:
    assert docs_site.in_site(page, text) == expected


def test_a_link_to_nothing_is_an_error() -> None:
    with pytest.raises(PluginError, match=r"docs/public.md has a link to ../gone.txt, which does not exist"):
        docs_site.in_site("docs/public.md", "[gone](../gone.txt)")


def test_a_page_that_is_not_in_the_navigation_is_an_error() -> None:
    nav = ["index.md", {"Operate": ["cluster.md", {"Title": "upgrades.md"}]}]
    docs_site.check_navigation(nav, ["index.md", "cluster.md", "upgrades.md", "adr/0001-x.md"])
    with pytest.raises(PluginError, match=r"not in the navigation of the site: backups.md. Add to `nav` in mkdocs.yml"):
        docs_site.check_navigation(nav, ["index.md", "cluster.md", "upgrades.md", "backups.md"])


def test_without_mermaid_the_build_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(docs_site, "files", lambda package: tmp_path)
    with pytest.raises(PluginError, match="NiceGUI has no Mermaid"):
        docs_site.on_post_build(SimpleNamespace(site_dir=str(tmp_path)))


def test_the_changelog_begins_with_this_version() -> None:
    from millstream.version import VERSION

    newest = next(line for line in (REPOSITORY / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert newest.startswith(f"## {VERSION} ("), "docs/releases.md: version.py and CHANGELOG.md have the same version"
