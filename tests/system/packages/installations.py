"""Places to install Millstream into: a site with the base dependencies alone, an empty venv, a folder with Debian."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.repository import REPOSITORY
from tests.waiting import TIMEOUT_SECONDS
from tools.apache_kafka import ToolchainMissingError
from tools.install_test_clients import debian_root

_NAME = re.compile(r"[A-Za-z0-9._-]+")
BUILD_LIMIT_SECONDS = 1200


def run(
    *command: str | Path,
    env: Mapping[str, str] | None = None,
    limit_s: float = BUILD_LIMIT_SECONDS,
    cwd: Path | None = None,
) -> str:
    """Runs a command and returns its output; fails the test with all that it printed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, env=env, cwd=cwd, capture_output=True, text=True, timeout=limit_s, input="")
    assert done.returncode == 0, f"{' '.join(words[:6])}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def build(into: Path, compiled: str) -> tuple[Path, Path]:
    """The source distribution and the wheel, as `make dist` builds them."""
    env = {**os.environ, "MILLSTREAM_COMPILED": compiled, "MILLSTREAM_OPTIMISATION": "0"}
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", into, REPOSITORY, env=env)
    (source,), (wheel,) = into.glob("*.tar.gz"), into.glob("*.whl")
    return source, wheel


def plain_wheel(into: Path) -> Path:
    """A wheel without compiled modules, straight from the source tree, which is left as it is."""
    into.mkdir(parents=True, exist_ok=True)
    (into / "places.cfg").write_text(f"[build]\nbuild_base={into}/build\n[egg_info]\negg_base={into}\n")
    env = {**os.environ, "MILLSTREAM_COMPILED": "refuse", "DIST_EXTRA_CONFIG": str(into / "places.cfg")}
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", into, REPOSITORY, env=env)
    (wheel,) = into.glob("*.whl")
    return wheel


def base_distributions(requirements: Sequence[str]) -> set[str]:
    """The names of all packages that these requirements bring, without extras."""
    waiting, found = [each for each in requirements if "extra ==" not in each], set[str]()
    while waiting:
        match = _NAME.match(waiting.pop())
        assert match is not None
        name = match.group().lower().replace("_", "-")
        if name not in found:
            try:
                own = distribution(name).requires or []
            except ModuleNotFoundError:  # for another version of Python
                continue
            found.add(name)
            waiting += [each for each in own if "extra ==" not in each]
    return found


def bare_site(directory: Path, wheel: Path, requirements: Sequence[str]) -> dict[str, str]:
    """A site with the wheel and its base dependencies, nothing else. Returns the environment of `python -S`."""
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", directory, wheel)
    for name in base_distributions(requirements):
        package = distribution(name)
        for top in {file.parts[0] for file in package.files or () if not file.parts[0].startswith("..")}:
            source = Path(str(package.locate_file(top)))
            if source.exists() and not (directory / top).exists():
                (directory / top).symlink_to(source)
    # `make test` requires the compiled form of the source tree; this wheel is plain.
    others = ("PYTHON", "MILLSTREAM_COMPILED")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    return {**inherited, "PYTHONPATH": str(directory)}


def empty_venv(directory: Path) -> Path:
    """The programs of a new virtual environment."""
    run(sys.executable, "-m", "venv", directory)
    return directory / "bin"


def path_without_compiler(directory: Path) -> str:
    """A PATH with the programs of this machine, except for compilers."""
    directory.mkdir()
    for folder in ("/usr/local/bin", "/usr/bin", "/bin"):
        for program in Path(folder).glob("*"):
            if re.search(r"(^|-)(cc|gcc|g\+\+|c\+\+|clang|c89|c99|cpp)(-[\d.]+)?$", program.name):
                continue
            if not (directory / program.name).is_symlink():
                (directory / program.name).symlink_to(program)
    assert shutil.which("cc", path=str(directory)) is None
    return str(directory)


@contextmanager
def debian(suite: str, packages: Sequence[str], directory: Path) -> Iterator[Path]:
    """A folder with a Debian of its own, for `chroot`. The test is skipped where it cannot be made."""
    try:
        made = debian_root(suite, sorted(packages))
    except ToolchainMissingError as reason:
        pytest.skip(str(reason))
    directory.mkdir(exist_ok=True)
    root = directory / suite
    run("cp", "-a", made, root)
    (root / "proc").mkdir(exist_ok=True)
    run("mount", "-t", "proc", "proc", root / "proc")
    try:
        yield root
    finally:
        run("umount", root / "proc")
        shutil.rmtree(root, ignore_errors=True)


def inside(
    root: Path, *command: str, env: Mapping[str, str] | None = None, limit_s: float = TIMEOUT_SECONDS * 10
) -> str:
    """Runs a command in a folder of `debian`."""
    path = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    return run("chroot", root, *command, env={**path, **(env or {})}, limit_s=limit_s)


def wheels_for(python: str, directory: Path, *requirements: str | Path) -> None:
    """Downloads wheels for another version of Python, to be installed where there is no network."""
    constraints = REPOSITORY / "constraints.txt"
    only = ("--only-binary=:all:", "--python-version", python, "--implementation", "cp")
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
    run(*pip, *only, "--constraint", constraints, "--dest", directory, *requirements)
