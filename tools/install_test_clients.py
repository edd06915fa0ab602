"""Installs the Kafka clients that `tests/system/clients/` drives, each by name through its package manager, the
browser of `tests/system/console/`, the S3 server of the tests of tiered storage, and what the tests of packages use:
helm, Kubernetes' schemas, folders with Debian.

Everything lands in the git-ignored `.cache/clients/` (kcat, Chromium and Kerberos: in the system, by apt-get), once: a
client is installed again only when the files that describe it change. A client that cannot be had here raises
`ToolchainMissingError` with the reason, which the tests show as the reason of a skip; this script prints it and goes
on, and fails only when asked to with `--strict`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools import apache_kafka
from tools.apache_kafka import CACHE, REPOSITORY_ROOT, ToolchainMissingError

SOURCES = REPOSITORY_ROOT / "tests" / "system" / "clients"
INSTALLED = CACHE / "clients"
VERSITYGW_VERSION = "v1.8.0"
AZURITE_VERSION = "3.35.0"
HELM_VERSION = "v3.19.0"
KUBERNETES_VERSION = "v1.34.1"


@dataclass(frozen=True, slots=True)
class ClientProgram:
    """How to start a client's program (see `tests/system/clients/programs/README.md`)."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


def need(program: str, what: str) -> None:
    if not shutil.which(program):
        raise ToolchainMissingError(f"{program} ({what}) is not installed")


def run(*command: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        said = " ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])
        raise ToolchainMissingError(f"`{' '.join(command[:3])} …` failed: {said}")


def fill(name: str, described_by: Sequence[Path | str], install: Callable[[Path], None]) -> Path:
    """The directory of one client; `install` fills it when it is absent, or when a file or name in `described_by` has
    changed."""
    descriptions = (each.encode() if isinstance(each, str) else each.read_bytes() for each in described_by)
    fingerprint = hashlib.sha256(b"".join(descriptions)).hexdigest()
    directory = INSTALLED / name
    stamp = directory / "installed-from"
    with apache_kafka.exclusive(f"clients-{name}"):
        if not stamp.exists() or stamp.read_text() != fingerprint:
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            install(directory)
            stamp.write_text(fingerprint)
    return directory


def python_client(program: str) -> ClientProgram:
    requirements = SOURCES / "programs" / "requirements.txt"

    def install(directory: Path) -> None:
        run(sys.executable, "-m", "venv", str(directory / "venv"))
        pip = (str(directory / "venv" / "bin" / "python"), "-m", "pip", "--disable-pip-version-check")
        run(*pip, "install", "--quiet", "--only-binary=:all:", "--requirement", str(requirements))

    python = fill("python", [requirements], install) / "venv" / "bin" / "python"
    return ClientProgram([str(python), str(SOURCES / "programs" / program)])


def confluent_kafka() -> ClientProgram:
    return python_client("confluent_program.py")


def kafka_python() -> ClientProgram:
    return python_client("kafka_python_program.py")


def aiokafka() -> ClientProgram:
    return python_client("aiokafka_program.py")


def debian_package(package: str, program: str) -> str:
    """A program of Debian's, installed if this is Debian and we may."""
    found = shutil.which(program)
    if found is None:
        _apt_get(package, program)
        found = shutil.which(program)
    if found is None:
        raise ToolchainMissingError(f"the package {package} has no {program}")
    return found


def _apt_get(package: str, what: str) -> None:
    need("apt-get", f"to install {package}")
    if os.geteuid() != 0:
        raise ToolchainMissingError(
            f"{what} is not installed, and only root can install it (apt-get install {package})"
        )
    quietly = {"DEBIAN_FRONTEND": "noninteractive"}
    with apache_kafka.exclusive(f"clients-{package}"):
        try:
            run("apt-get", "install", "--yes", package, environment=quietly)
        except ToolchainMissingError:
            run("apt-get", "update", environment=quietly)
            run("apt-get", "install", "--yes", package, environment=quietly)


def kerberos() -> Mapping[str, str]:
    """A Kerberos server and its tools, by apt-get, and the library of the extra `millstream[gssapi]`; returns the
    environment of processes that use the library."""
    for package, program in (
        ("krb5-kdc", "krb5kdc"),
        ("krb5-admin-server", "kadmin.local"),
        ("krb5-user", "kinit"),
        ("libkrb5-dev", "krb5-config"),
    ):
        debian_package(package, program)
    need("cc", "a C compiler, for the package gssapi")
    constraints = REPOSITORY_ROOT / "constraints.txt"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--constraint")
    library = fill("gssapi", [constraints], lambda into: run(*pip, str(constraints), "--target", str(into), "gssapi"))
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(library), os.environ.get("PYTHONPATH"))))}


def kcat_with_kerberos() -> None:
    """kcat, and the plug-in of its SASL library."""
    kcat()
    if not any(Path("/usr/lib").glob("*/sasl2/libgssapiv2.so")):
        _apt_get("libsasl2-modules-gssapi-mit", "the plug-in for GSSAPI")


def kcat() -> ClientProgram:
    debian_package("kcat", "kcat")
    return ClientProgram([sys.executable, str(SOURCES / "programs" / "kcat_program.py")])


def chromium() -> ClientProgram:
    """The browser in which `tests/system/console/` looks at the console; Playwright drives it. Where Debian has it, the
    form without windows, which takes two thirds of the CPU time."""
    try:
        return ClientProgram([debian_package("chromium-headless-shell", "chromium-headless-shell")])
    except ToolchainMissingError:
        return ClientProgram([debian_package("chromium", "chromium")])


def prometheus() -> ClientProgram:
    """Prometheus itself, with promtool: `tests/integration/node/metrics/` runs the queries of dashboards and alerts."""
    debian_package("prometheus", "promtool")
    return ClientProgram([debian_package("prometheus", "prometheus")])


def kafkajs() -> ClientProgram:
    need("node", "Node.js")
    need("npm", "the package manager of Node.js")
    described_by = [SOURCES / "node" / name for name in (".npmrc", "package.json", "package-lock.json")]

    def install(directory: Path) -> None:
        for file in described_by:
            shutil.copy(file, directory)
        run("npm", "ci", "--ignore-scripts", "--silent", cwd=directory)

    modules = fill("node", described_by, install) / "node_modules"
    return ClientProgram(["node", str(SOURCES / "node" / "interoperability.js")], {"NODE_PATH": str(modules)})


def java() -> ClientProgram:
    kafka = apache_kafka.resolve()
    need("javac", "a JDK, 17 or newer")
    source = SOURCES / "java" / "Interoperability.java"

    def install(directory: Path) -> None:
        run("javac", "-d", str(directory), "-cp", kafka.classpath, str(source))

    classes = fill("java", [source, kafka.directory / "pom.xml"], install)
    log4j = f"-Dlog4j2.configurationFile={kafka.directory / 'log4j2-tool.properties'}"
    # A short-lived test program gains nothing from the second compiler, and the cores are few.
    options = ["-Xmx256m", *apache_kafka.QUICK_START_OPTIONS, log4j]
    return ClientProgram(["java", *options, "-cp", f"{kafka.classpath}:{classes}", "Interoperability"])


def franz_go() -> ClientProgram:
    need("go", "the Go toolchain")
    described_by = [SOURCES / "go" / name for name in ("go.mod", "go.sum", "main.go")]

    def install(directory: Path) -> None:
        run("go", "build", "-o", str(directory / "interoperability"), ".", cwd=SOURCES / "go")

    return ClientProgram([str(fill("go", described_by, install) / "interoperability")])


def versitygw() -> ClientProgram:
    """An S3 server over a directory: `tests/s3_server.py` starts it for the tests of tiered storage."""
    need("go", "the Go toolchain")
    package = f"github.com/versity/versitygw/cmd/versitygw@{VERSITYGW_VERSION}"

    def install(directory: Path) -> None:
        run("go", "install", "-ldflags", "-s -w", package, environment={"GOBIN": str(directory)})

    return ClientProgram([str(fill("versitygw", [package], install) / "versitygw")])


def azurite() -> ClientProgram:
    """Microsoft's emulator of Azure Blob Storage."""
    need("node", "Node.js")
    need("npm", "the package manager of Node.js")
    package = f"azurite@{AZURITE_VERSION}"

    def install(directory: Path) -> None:
        run("npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent", package, cwd=directory)

    return ClientProgram([str(fill("azurite", [package], install) / "node_modules" / ".bin" / "azurite-blob")])


def helm() -> ClientProgram:
    """Helm, which renders the chart in `deploy/helm`."""
    need("go", "the Go toolchain")
    package = f"helm.sh/helm/v3/cmd/helm@{HELM_VERSION}"

    def install(directory: Path) -> None:
        run("go", "install", "-ldflags", "-s -w", package, environment={"GOBIN": str(directory)})

    return ClientProgram([str(fill("helm", [package], install) / "helm")])


def kubernetes_schemas() -> Path:
    """The OpenAPI description of Kubernetes, from its Go module."""
    need("go", "the Go toolchain")
    module = f"k8s.io/kubernetes@{KUBERNETES_VERSION}"

    def install(directory: Path) -> None:
        cache = {"GOMODCACHE": str(directory / "modules"), "GOFLAGS": "-modcacherw"}
        run("go", "mod", "download", module, cwd=directory, environment=cache)
        shutil.copy(directory / "modules" / module / "api/openapi-spec/swagger.json", directory)
        shutil.rmtree(directory / "modules")

    return fill("kubernetes-schemas", [module], install) / "swagger.json"


def debian_root(suite: str, packages: Sequence[str]) -> Path:
    """A folder with a minimal Debian and these packages, by debootstrap. Tests copy it, and never change it."""
    if os.geteuid() != 0:
        raise ToolchainMissingError("only root can make a folder with Debian (debootstrap, chroot)")
    program = debian_package("debootstrap", "debootstrap")

    def install(directory: Path) -> None:
        included = f"--include={','.join(packages)}"
        run(program, "--variant=minbase", included, suite, str(directory / "root"), "http://deb.debian.org/debian")

    return fill("-".join(("debian", suite, *packages)), [suite, *packages], install) / "root"


CLIENTS: Mapping[str, Callable[[], ClientProgram]] = {
    "confluent-kafka": confluent_kafka,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka,
    "kcat": kcat,
    "kafkajs": kafkajs,
    "java": java,
    "franz-go": franz_go,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Install the Kafka clients the interoperability tests use.")
    every: dict[str, Callable[[], object]] = {
        **CLIENTS,
        "chromium": chromium,
        "prometheus": prometheus,
        "kerberos": kerberos,
        "versitygw": versitygw,
        "helm": helm,
        "kubernetes": kubernetes_schemas,
    }
    parser.add_argument("clients", nargs="*", help=f"of {', '.join(every)}; all when none is named")
    parser.add_argument("--strict", action="store_true", help="fail when a client cannot be installed")
    chosen = parser.parse_args()
    missing = 0
    for name in chosen.clients or every:
        try:
            every[name]()
            print(f"{name:16} ready", flush=True)
        except ToolchainMissingError as reason:
            missing += 1
            print(f"{name:16} missing, its tests will be skipped: {reason}", flush=True)
    return 1 if missing and chosen.strict else 0


if __name__ == "__main__":
    sys.exit(main())
