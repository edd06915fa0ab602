"""Wheels and the source distribution: what they bring, and a broker that runs from them in an empty environment."""

import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

import millstream
from tests.repository import REPOSITORY
from tests.system.packages.installations import (
    bare_site,
    base_distributions,
    build,
    debian,
    empty_venv,
    inside,
    path_without_compiler,
    plain_wheel,
    run,
    wheels_for,
)
from tests.waiting import TIMEOUT_SECONDS


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return message_from_string(archive.read(name).decode())


@contextmanager
def serving(command: Sequence[str | Path], directory: Path, env: Mapping[str, str]) -> Iterator[str]:
    """The address of a broker that this command starts."""
    log = directory / "serve.log"
    with log.open("w") as errors:
        words = [str(word) for word in command]
        process = subprocess.Popen(
            words, env=env, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready kafka="), (line, log.read_text()[-3000:])
        yield line.split()[1].removeprefix("kafka=")
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_SECONDS) == 0, log.read_text()[-3000:]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def write_and_read(bootstrap: str) -> None:
    with millstream.connect(bootstrap) as client:
        client.create_topic("orders")
        client.publish("orders", {"id": 1})
        assert [record.json() for record in client.consume("orders", follow=False)] == [{"id": 1}]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plain_wheel(tmp_path_factory.mktemp("dist"))


def test_the_base_install_is_a_broker_without_client_libraries(plain: Path, tmp_path: Path) -> None:
    assert plain.name.endswith("-py3-none-any.whl")
    requirements = metadata_of(plain).get_all("Requires-Dist") or []
    brought = base_distributions(requirements)
    assert {"cryptography", "uvloop", "typer"} <= brought
    unwanted = {"confluent-kafka", "obstore", "pyarrow", "numpy", "starlette", "pyspark", "kafka-python"}
    assert not brought & unwanted
    env = bare_site(tmp_path / "site", plain, requirements)
    command = (sys.executable, "-S", "-m", "millstream")
    with serving([*command, "serve", "--listen", "127.0.0.1:0", "--data-dir", "data"], tmp_path, env) as bootstrap:
        write_and_read(bootstrap)
        assert "partitions: 0 offline" in run(*command, "cluster", "status", "--bootstrap", bootstrap, env=env)
        refused = subprocess.run(
            [*command, "topic", "list", "--bootstrap", bootstrap], env=env, capture_output=True, text=True
        )
        assert refused.returncode == 1 and "pip install 'millstream[client]'" in refused.stderr, refused.stderr
    tiered = ("--set", "remote.log.storage.system.enable=true", "--set", f"millstream.tier.url=file://{tmp_path}/tier")
    refused = subprocess.run(
        [*command, "serve", "--listen", "127.0.0.1:0", "--data-dir", tmp_path / "tiered", *tiered],
        env=env,
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 1 and "pip install 'millstream[tier]'" in refused.stderr, refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_versions_of_python_in_the_classifiers(plain: Path) -> None:
    """3.11 runs all tests; `test_on_a_newer_debian` runs the other one."""
    claimed = [
        each.rpartition(" ")[2]
        for each in metadata_of(plain).get_all("Classifier") or []
        if each.startswith("Programming Language :: Python :: 3.")
    ]
    assert claimed == ["3.11", "3.13"]


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_wheel_with_compiled_modules_in_an_empty_venv(tmp_path: Path) -> None:
    _, wheel = build(tmp_path / "dist", "require")
    assert "-cp311-cp311-" in wheel.name
    programs = empty_venv(tmp_path / "venv")
    constraints = REPOSITORY / "constraints.txt"
    run(programs / "pip", "install", "--quiet", "--disable-pip-version-check", "--constraint", constraints, wheel)
    python, env = programs / "python", installed_environment()
    assert ", compiled" in run(programs / "millstream", "version", env=env, cwd=tmp_path)
    run(
        python, "-c", "import millstream.formats.records._walking, millstream.node.storage.cleaner._loops", cwd=tmp_path
    )
    command = (programs / "millstream", "serve", "--listen", "127.0.0.1:0", "--data-dir")
    with serving([*command, "compiled"], tmp_path, env) as bootstrap:
        write_and_read(bootstrap)
    with serving([*command, "plain"], tmp_path, {**env, "MILLSTREAM_COMPILED": "refuse"}) as bootstrap:
        write_and_read(bootstrap)


def installed_environment() -> dict[str, str]:
    """Variables of a user who chose nothing."""
    chosen = ("PYTHONPATH", "MILLSTREAM_COMPILED", "CC")
    return {name: value for name, value in os.environ.items() if name not in chosen}


PIP_INSTALL = ("install", "--disable-pip-version-check", "--constraint", REPOSITORY / "constraints.txt")


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_source_distribution_where_there_is_a_compiler(tmp_path: Path) -> None:
    """pip builds it in an environment that has the build requirements alone."""
    source, _ = build(tmp_path / "dist", "refuse")
    programs = empty_venv(tmp_path / "venv")
    env = {**installed_environment(), "MILLSTREAM_OPTIMISATION": "0"}
    run(programs / "pip", *PIP_INSTALL, "--quiet", source, env=env)
    assert ", compiled" in run(programs / "millstream", "version", env=env, cwd=tmp_path)
    command = (programs / "millstream", "serve", "--listen", "127.0.0.1:0", "--data-dir", "data")
    with serving(command, tmp_path, env) as bootstrap:
        write_and_read(bootstrap)


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_source_distribution_where_there_is_no_compiler(tmp_path: Path) -> None:
    source, _ = build(tmp_path / "dist", "refuse")
    programs = empty_venv(tmp_path / "venv")
    env = {**installed_environment(), "PATH": path_without_compiler(tmp_path / "path")}
    install = (programs / "pip", *PIP_INSTALL)
    required = subprocess.run(
        [*install, source], env={**env, "MILLSTREAM_COMPILED": "require"}, capture_output=True, text=True
    )
    assert required.returncode != 0
    assert "there is no C compiler (install gcc or clang, or set CC)" in required.stdout + required.stderr
    run(*install, "--quiet", source, env=env)
    version = run(programs / "millstream", "version", env=env, cwd=tmp_path)
    assert ", plain Python (" in version and "there is no C compiler" in version
    command = (programs / "millstream", "serve", "--listen", "127.0.0.1:0", "--data-dir", "data")
    with serving(command, tmp_path, env) as bootstrap:
        write_and_read(bootstrap)


UNIT_TESTS = ("common", "config", "formats", "node")
"""What a broker is made of."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_on_a_newer_debian(plain: Path, tmp_path: Path) -> None:
    """Python 3.13: the broker serves a client, and the unit tests of what it is made of pass."""
    with debian("trixie", ("python3", "python3-venv", "ca-certificates"), tmp_path) as root:
        wheels_for("313", root / "wheels", f"{plain}[client,tier]", *TEST_PACKAGES)
        inside(root, "python3", "-m", "venv", "/opt/millstream")
        pip = ("/opt/millstream/bin/pip", "install", "--quiet", "--no-index", "--find-links", "/wheels")
        inside(root, *pip, f"millstream[client,tier] @ file:///wheels/{plain.name}", *TEST_PACKAGES)
        assert '"python": "3.13.' in inside(root, "/opt/millstream/bin/millstream", "version", "--json")
        command = ("chroot", root, "/opt/millstream/bin/millstream", "serve", "--listen", "127.0.0.1:0")
        with serving([*command, "--data-dir", "/var/lib/millstream"], tmp_path, installed_environment()) as bootstrap:
            write_and_read(bootstrap)
        for name in (
            "tests",
            "tools",
            "docs",
            "benchmarks",
            "pyproject.toml",
            "setup.py",
            "README.md",
            "src",
            "deploy",
        ):
            run("cp", "-a", REPOSITORY / name, root / "opt")
        run("find", root / "opt" / "src", "-name", "*.so", "-delete")
        folders = [f"tests/unit/{each}" for each in UNIT_TESTS]
        pytest_command = f"cd /opt && exec millstream/bin/python -m pytest -q -m 'not slow' {' '.join(folders)}"
        limit_s, few = 3000, {"MILLSTREAM_EXAMPLES": "quick", "PYTHONPATH": "/opt/src"}
        assert " passed" in inside(root, "sh", "-c", pytest_command, env=few, limit_s=limit_s)


TEST_PACKAGES = ("pytest", "pytest-timeout", "hypothesis", "aiokafka", "kafka-python", "kio", "mypy")
