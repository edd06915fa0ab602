"""Builds the Debian package: a virtual environment in /usr/lib/millstream, the unit of systemd, settings as a conffile.

    python -m tools.debian_package dist/millstream-0.1.0-*.whl --output dist

The package is for the Debian and the machine that it is built on: its libraries are compiled for their Python. pip
installs the wheel and its dependencies here; nothing is downloaded when the package is installed. dpkg-deb packs it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

REPOSITORY_ROOT = Path(__file__).resolve().parents[1]
DEPLOY = REPOSITORY_ROOT / "deploy"
PLACE = Path("usr/lib/millstream")
EXTRAS = "client,tier"
MAINTAINER = "Millstream <maintainers@millstream.invalid>"
_SCRIPTS = {
    "postinst": """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    systemd-sysusers millstream.conf
    chown root:millstream /etc/millstream /etc/millstream/server.properties
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        # A node that ran before the upgrade runs on with the old program until it is restarted.
        if [ -z "$2" ]; then
            echo "Start the node with: systemctl enable --now millstream"
        else
            echo "Restart the node when its partitions are in sync: systemctl restart millstream"
        fi
    fi
fi
""",
    "prerm": """\
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now millstream
fi
""",
    "postrm": """\
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
if [ "$1" = purge ]; then
    rm -rf /etc/millstream
    echo "The data in /var/lib/millstream stays: remove it yourself."
fi
""",
}


def run(*command: str | Path, cwd: Path | None = None) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words[:4])} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout.strip()


def build(wheel: Path, output: Path, python: str, wheels: Path | None) -> Path:
    """Builds the package into the directory `output`. `wheels` is a directory with all wheels, instead of an index."""
    matched = re.match(r"millstream-([^-]+)-", wheel.name)
    if matched is None:
        sys.exit(f"{wheel}: not a wheel of Millstream (make dist builds one)")
    version = matched.group(1)
    architecture = run("dpkg", "--print-architecture")
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "root"
        root.mkdir(mode=0o755)
        _install(root, wheel, python, wheels)
        _files(root)
        _control(root, version, architecture, run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"))
        output.mkdir(parents=True, exist_ok=True)
        package = output / f"millstream_{version}_{architecture}.deb"
        run("dpkg-deb", "-Zgzip", "--build", "--root-owner-group", root, package)  # xz takes minutes
    return package


def _install(root: Path, wheel: Path, python: str, wheels: Path | None) -> None:
    """A virtual environment, as it will be in its place: paths in its programs are those of the installed system."""
    place = root / PLACE
    run(python, "-m", "venv", "--without-pip", place)
    library = next((place / "lib").glob("python3*")) / "site-packages"
    index = ("--no-index", "--find-links", wheels) if wheels is not None else ()
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--only-binary=:all:")
    version = library.parent.name.removeprefix("python")
    target = ("--target", library, "--python-version", version, "--implementation", "cp")
    constraints = ("--constraint", REPOSITORY_ROOT / "constraints.txt")
    run(*pip, *target, *constraints, *index, f"millstream[{EXTRAS}] @ {wheel.resolve().as_uri()}")
    shutil.rmtree(library / "bin", ignore_errors=True)
    for program in (place / "bin").iterdir():
        if not program.is_symlink():  # scripts that activate the environment
            program.unlink()
    command = place / "bin" / "millstream"
    command.write_text(
        f"#!/{PLACE}/bin/python3\nimport sys\n\nfrom millstream.cli.main import main\n\nsys.exit(main())\n"
    )
    command.chmod(0o755)
    (place / "bin" / "python3").unlink()
    (place / "bin" / "python3").symlink_to("/usr/bin/python3")
    (place / "pyvenv.cfg").write_text(f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}\n")
    for cache in list(root.rglob("__pycache__")):
        shutil.rmtree(cache)
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/millstream").symlink_to("../lib/millstream/bin/millstream")


def _files(root: Path) -> None:
    for source, target, mode in (
        (DEPLOY / "systemd/millstream.service", "usr/lib/systemd/system/millstream.service", 0o644),
        (DEPLOY / "systemd/millstream.conf", "usr/lib/sysusers.d/millstream.conf", 0o644),
        (DEPLOY / "debian/server.properties", "etc/millstream/server.properties", 0o640),
        (REPOSITORY_ROOT / "LICENSE", "usr/share/doc/millstream/copyright", 0o644),
    ):
        place = root / target
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, place)
        place.chmod(mode)
    (root / "etc/millstream").chmod(0o750)


def _control(root: Path, version: str, architecture: str, python: str) -> None:
    control = root / "DEBIAN"
    control.mkdir(mode=0o755)
    major, minor = python.split(".")
    size = sum(path.lstat().st_size for path in root.rglob("*") if path.is_file()) // 1024
    (control / "control").write_text(
        f"Package: millstream\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\n"
        f"Installed-Size: {size}\nDepends: python3 (>= {python}), python3 (<< {major}.{int(minor) + 1}), systemd\n"
        "Section: net\nPriority: optional\n"
        "Description: Kafka-compatible distributed commit log\n"
        " A broker that every Kafka client speaks to, with its command line.\n"
    )
    (control / "conffiles").write_text("/etc/millstream/server.properties\n")
    for name, text in _SCRIPTS.items():
        (control / name).write_text(text)
        (control / name).chmod(0o755)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the Debian package of Millstream.")
    parser.add_argument("wheel", type=Path, help="the wheel, as `make dist` builds it")
    parser.add_argument("--output", type=Path, default=Path("dist"), help="directory of the package")
    parser.add_argument("--python", default="/usr/bin/python3", help="the Python of the Debian that it is for")
    parser.add_argument("--wheels", type=Path, help="directory with all wheels, instead of an index")
    chosen = parser.parse_args(arguments)
    os.umask(0o022)
    print(build(chosen.wheel, chosen.output, chosen.python, chosen.wheels))
    return 0


if __name__ == "__main__":
    sys.exit(main())
