"""What the docs site needs beside MkDocs: patterns in the navigation, pages from other folders, links, diagrams.

MkDocs calls the functions `on_…` of this file (`hooks` in mkdocs.yml). The repository's own pages (README.md, …) are in
the site, so that readers find all in one place; their links are changed to the pages of the site. A link to a file that
is not in the site, such as a test, becomes its path. Diagrams are drawn by Mermaid from NiceGUI's package, which the
console needs too: the site fetches nothing from other hosts.
"""

import posixpath
import re
import shutil
from collections.abc import Iterable
from fnmatch import fnmatch
from functools import partial
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
REPOSITORY_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-reports.md",
}
"""Pages outside of docs/, and where they are in the site."""
DECISIONS = "adr/index.md"
_FENCE = re.compile(r"^(```.*?^```$)", re.DOTALL | re.M)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
_ADDRESS = re.compile(r"^[a-z]+:|^/")
_DRAW = """import { mermaid } from "./mermaid/index.js";

const isDark = document.body.getAttribute("data-md-color-scheme") === "slate";
mermaid.initialize({ startOnLoad: false, theme: isDark ? "dark" : "default" });
await mermaid.run({ querySelector: ".diagram" });
"""


# The navigation


def _pages(docs: Path) -> list[str]:
    return sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))


def _named(nav: Any) -> set[str]:
    """The pages in a navigation, and its patterns."""
    if isinstance(nav, str):
        return {nav}
    return set[str]().union(*map(_named, nav.values() if isinstance(nav, dict) else nav))


def expanded(nav: Any, pages: list[str]) -> Any:
    """The navigation with pages for its patterns: those that it does not name elsewhere."""
    others = [page for page in pages if page not in _named(nav)]

    def entries(part: Any) -> Any:
        if isinstance(part, list):
            return [page for entry in part for page in entries(entry)]
        if isinstance(part, dict):
            return [{title: entries(below) if isinstance(below, list) else below for title, below in part.items()}]
        if "*" in part:
            return [page for page in others if fnmatch(page, part) and page.count("/") == part.count("/")]
        return [part]

    return entries(nav)


def check_navigation(nav: Any, pages: Iterable[str]) -> None:
    missing = sorted(page for page in pages if page not in _named(nav) and not fnmatch(page, "adr/*"))
    if missing:
        raise PluginError(f"not in the navigation of the site: {', '.join(missing)}. Add to `nav` in mkdocs.yml.")


def on_config(config: Any) -> Any:
    config.nav = expanded(config.nav, _pages(Path(config.docs_dir)))
    return config


def on_files(files: Files, config: Any) -> Files:
    for name, page in REPOSITORY_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    files.append(File.generated(config, DECISIONS, content=_decisions(Path(config.docs_dir) / "adr")))
    files.append(File.generated(config, "assets/diagrams.js", content=_DRAW))
    check_navigation(config.nav, [page.src_uri for page in files.documentation_pages()])
    return files


def _decisions(folder: Path) -> str:
    rows = [
        f"- [{path.read_text().splitlines()[0].lstrip('# ')}]({path.name})" for path in sorted(folder.glob("0*.md"))
    ]
    return (
        "# Decisions\n\nEach cost something to undo. A page has the context, the choice and what follows from it.\n\n"
        + ("\n".join(rows) + "\n")
    )


# Links


def site_link(page: str, match: re.Match[str]) -> str:
    """A link of a page of the repository, as it is in the site. `page` and targets are paths in the repository."""
    is_image, text, target, anchor = match.groups()
    if _ADDRESS.match(target):
        return match[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    if path == "docs/adr":
        found = DECISIONS
    elif path in REPOSITORY_PAGES:
        found = REPOSITORY_PAGES[path]
    elif path.startswith("docs/"):
        found = path.removeprefix("docs/")
        if (ROOT / path).is_dir() and (ROOT / path / "README.md").exists():
            found += "/README.md"
    elif (ROOT / path).exists():
        return f"{text} (`{path}`)" if text.strip("`") not in (path, f"{path}/") else f"`{path}`"
    else:
        raise PluginError(f"{page} has a link to {target}, which does not exist. Correct the link.")
    own = REPOSITORY_PAGES.get(page, page.removeprefix("docs/"))
    return f"{is_image}[{text}]({posixpath.relpath(found, posixpath.dirname(own) or '.')}{anchor or ''})"


def in_site(page: str, markdown: str) -> str:
    """The text of a page of the repository with the links of the site; code stays as it is."""
    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(partial(site_link, page), part) for part in parts)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    if page.file.src_uri == DECISIONS:
        return markdown
    names = {site: name for name, site in REPOSITORY_PAGES.items()}
    return in_site(names.get(page.file.src_uri, f"docs/{page.file.src_uri}"), markdown)


# Diagrams


def on_post_build(config: Any) -> None:
    source = files("nicegui") / "elements" / "mermaid" / "dist"
    if not (source / "index.js").is_file():
        raise PluginError("NiceGUI has no Mermaid in elements/mermaid/dist any more: change tools/docs_site.py.")
    with as_file(source) as folder:
        shutil.copytree(folder, Path(config.site_dir) / "assets" / "mermaid", ignore=shutil.ignore_patterns("*.map"))
