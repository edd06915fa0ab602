"""`make release-check` names everything that a publication lacks, and nothing else."""

from pathlib import Path

import pytest

from tests.repository import REPOSITORY
from tools.check_release import URLS, problems

READY = {
    "pyproject.toml": "[project]\nname = 'x'\n[project.urls]\n"
    + "".join(f"{name} = 'https://x.example'\n" for name in URLS),
    ".github/CODEOWNERS": "# not @maintainers\n*  @shop/logs\n",
    "src/millstream/version.py": '"""Where it is."""\n\nVERSION = "1.2.0"\n',
    "CHANGELOG.md": "# Changes\n\n## 1.2.0 (2026-12-01)\n- News.\n\n## 1.1.0 (2026-11-01)\n",
    "README.md": "`pip install millstream`\n",
    "docs/deploy-pip.md": "`pip install millstream`\n",
}


def found(directory: Path, **changes: str) -> list[str]:
    for name, text in {**READY, **changes}.items():
        place = directory / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return list(problems(directory))


def test_a_repository_that_is_ready(tmp_path: Path) -> None:
    assert found(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("pyproject.toml", READY["pyproject.toml"].replace("Issues", "Other"), "[project.urls] has no real Issues"),
        (
            "pyproject.toml",
            READY["pyproject.toml"].replace("https", "http"),
            "[project.urls] has no real Documentation",
        ),
        (
            "pyproject.toml",
            READY["pyproject.toml"].replace("x.example", "millstream.example"),
            "has no real Documentation",
        ),
        (".github/CODEOWNERS", "*  @maintainers\n", ".github/CODEOWNERS names @maintainers"),
        ("CHANGELOG.md", READY["CHANGELOG.md"].replace("2026-12-01", "unreleased"), "1.2.0 has no date"),
        ("CHANGELOG.md", "## 1.1.0 (2026-11-01)\n", "does not begin with a section of version 1.2.0"),
        ("README.md", "It is not on PyPI yet.", "README.md says"),
    ],
)
def test_missing_parts_of_a_release_are_named(name: str, text: str, said: str, tmp_path: Path) -> None:
    lines = found(tmp_path, **{name: text})
    assert lines and said in lines[0]


def test_the_first_section_of_the_changelog_is_of_this_version() -> None:
    assert not [each for each in problems(REPOSITORY) if "does not begin" in each]
