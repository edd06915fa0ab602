"""Checks that the repository is ready to be published as a version (`make release-check`, docs/releases.md).

What only a publication needs, and what would be wrong before: addresses, owners, a date. Tests and benchmarks are steps
of their own. Prints a line for each thing that is missing, with what to do; the exit code is 1 then."""

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

URLS = ("Documentation", "Source", "Issues", "Changelog")
PLACEHOLDER = "@maintainers"
PLACEHOLDER_HOST = "millstream.example"
"""A name that can never exist (RFC 2606)."""
NOT_PUBLISHED = "not on PyPI yet"


def problems(root: Path) -> Iterator[str]:
    yield from _addresses(tomllib.loads((root / "pyproject.toml").read_text())["project"].get("urls", {}))
    owners = [line for line in (root / ".github" / "CODEOWNERS").read_text().splitlines() if not line.startswith("#")]
    if any(PLACEHOLDER in line for line in owners):
        yield f".github/CODEOWNERS names {PLACEHOLDER}: write an account or a team of the host of the repository"
    yield from _version(root)
    for page in (root / "README.md", root / "docs" / "deploy-pip.md"):
        if NOT_PUBLISHED in page.read_text():
            yield f"{page.relative_to(root)} says that Millstream is {NOT_PUBLISHED}: remove that part"


def _addresses(urls: Mapping[str, str]) -> Iterator[str]:
    for name in URLS:
        if not urls.get(name, "").startswith("https://") or PLACEHOLDER_HOST in urls[name]:
            yield f"pyproject.toml: [project.urls] has no real {name}: write its address, which begins with https://"


def _version(root: Path) -> Iterator[str]:
    (version,) = re.findall(r'^VERSION = "(.+)"$', (root / "src" / "millstream" / "version.py").read_text(), re.M)
    newest = re.search(r"^## (\S+) \((.+)\)$", (root / "CHANGELOG.md").read_text(), re.M)
    if newest is None or newest.group(1) != version:
        yield f"CHANGELOG.md does not begin with a section of version {version}, that of src/millstream/version.py"
    elif not re.fullmatch(r"\d{4}-\d\d-\d\d", newest.group(2)):
        yield f"CHANGELOG.md: version {version} has no date but ({newest.group(2)}): write it as (YYYY-MM-DD)"


def main() -> int:
    found = list(problems(Path(__file__).parents[1]))
    print("\n".join(found) if found else "Ready to be published.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
