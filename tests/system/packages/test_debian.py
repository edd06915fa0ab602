"""In folders with Debian: the Debian package, and the file system of the container image."""

import os
import re
import sys
import tomllib
from pathlib import Path

import pytest

from millstream.testing.node_process import free_ports
from tests.repository import REPOSITORY
from tests.system.packages.installations import BUILD_LIMIT_SECONDS, debian, inside, plain_wheel, run, wheels_for
from tests.system.packages.pages import DOCKERFILE, entry_point
from tests.system.packages.test_wheels import serving, write_and_read

PYTHON_OF_DEBIAN = {"bookworm": "311", "trixie": "313"}


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_debian_package_is_installed_upgraded_and_purged(tmp_path: Path) -> None:
    """Built for the Debian of this machine, installed into another one, upgraded with a changed conffile, purged."""
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    suite = release.get("VERSION_CODENAME", "").strip('"')
    if release.get("ID") != "debian" or suite not in PYTHON_OF_DEBIAN:
        pytest.skip("the package is built on Debian 12 or 13")
    wheel = plain_wheel(tmp_path / "dist")
    built = run(sys.executable, "-m", "tools.debian_package", wheel, "--output", tmp_path / "deb")
    package = Path(built.strip().splitlines()[-1])
    with debian(suite, ("python3", "systemd"), tmp_path) as root:
        run("cp", package, root / "millstream.deb")
        inside(root, "dpkg", "--install", "/millstream.deb")
        assert "millstream" in inside(root, "id", "--name", "--user", "millstream")
        assert (root / "etc/millstream/server.properties").stat().st_mode & 0o777 == 0o640
        assert "plain Python" in inside(root, "millstream", "version")
        settings = root / "etc/millstream/server.properties"
        client, controller = free_ports(2)
        changed = settings.read_text().replace(":9092", f":{client}").replace(":9093", f":{controller}")
        settings.write_text(f"{changed}auto.create.topics.enable=false\n")
        inside(root, "dpkg", "--force-confold", "--install", "/millstream.deb")
        assert "auto.create.topics.enable=false" in settings.read_text()
        (start,) = re.findall(
            r"^ExecStart=(.*)$", (root / "usr/lib/systemd/system/millstream.service").read_text(), re.M
        )
        inside(root, "install", "-d", "-o", "millstream", "-g", "millstream", "-m", "0700", "/var/lib/millstream")
        words = ["chroot", "--userspec=millstream:millstream", str(root), *start.split()]
        with serving(words, tmp_path, {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}) as bootstrap:
            write_and_read(bootstrap)
        inside(root, "dpkg", "--purge", "millstream")
        assert not (root / "etc/millstream").exists() and (root / "var/lib/millstream/data").exists()


def stages() -> list[str]:
    """The stages of the Dockerfile, each command on one line."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.M)
    return re.sub(r"\\\n\s*", " ", text).split("FROM ")[1:]


def packages_of(stage: str) -> tuple[str, list[str]]:
    """The suite of Debian that a stage is made from, and what it installs."""
    suite = re.match(r"debian:(\w+)-slim", stage)
    (packages,) = re.findall(r"apt-get install --yes --no-install-recommends (.*?) &&", stage)
    assert suite is not None
    return suite.group(1), packages.split()


def build_first_stage(stage: str, root: Path, wheel: Path) -> None:
    """Runs the first stage in a folder with Debian. There is no network: wheels of all packages are in a directory."""
    suite, _ = packages_of(stage)
    for words in re.findall(r"^COPY (.*)$", stage, re.M):
        *sources, place = words.split()
        target = root / "build" / place
        target.mkdir(parents=True, exist_ok=True)
        for source in sources:
            path = REPOSITORY / source
            run("cp", "-a", f"{path}/." if path.is_dir() else path, target)
    run("find", root / "build" / "src", "-name", "*.so", "-delete")
    needed = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["build-system"]["requires"]
    arguments = dict(re.findall(r"^ARG (\w+)=(.*)$", stage, re.M))
    wheels_for(PYTHON_OF_DEBIAN[suite], root / "wheels", f"{wheel}[{arguments['EXTRAS']}]", *needed)
    (install,) = re.findall(r"^RUN (python3 -m venv .*)$", stage, re.M)
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels", "MILLSTREAM_OPTIMISATION": "0"}
    inside(root, "sh", "-ec", f"cd /build && {install}", env={**arguments, **offline}, limit_s=BUILD_LIMIT_SECONDS)


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_file_system_of_the_image(tmp_path: Path) -> None:
    """Both stages of the Dockerfile, without a container engine: the first compiles the modules, the last runs as user
    1000 with a read-only root."""
    first_stage, last_stage = stages()
    (user,) = re.findall(r"^USER (\d+)$", last_stage, re.M)
    (making,) = re.findall(r"&& (useradd .*)$", last_stage, re.M)
    environment = dict(word.split("=", 1) for word in re.findall(r"^ENV (.*)$", last_stage, re.M)[0].split())
    wheel = plain_wheel(tmp_path / "dist")
    with (
        debian(*packages_of(first_stage), tmp_path / "first") as made,
        debian(*packages_of(last_stage), tmp_path / "last") as root,
    ):
        build_first_stage(first_stage, made, wheel)
        inside(root, "sh", "-ec", making)
        copied = re.findall(r"^COPY --from=build (\S+) (\S+)$", last_stage, re.M)
        assert [source for source, _ in copied] == ["/opt/millstream", "/opt/kafka"]
        for source, target in copied:
            run("cp", "-a", f"{made}{source}", f"{root}{target}")
        version = inside(root, "/opt/millstream/bin/millstream", "version")
        assert ", compiled" in version, version
        volume = tmp_path / "volume"
        volume.mkdir()
        os.chown(volume, int(user), 0)
        script = (
            f"mount --bind {root} {root}; mount -o remount,bind,ro {root}\n"
            f"mount --bind {volume} {root}/var/lib/kafka/data\n"
            f"mount -t tmpfs -o mode=1777 tmpfs {root}/run/millstream\n"
            f'exec chroot --userspec={user} {root} "$@"'
        )
        command = ["unshare", "--mount", "sh", "-ec", script, "sh", *entry_point()]
        client, controller = free_ports(2)
        variables = {
            **environment,
            "KAFKA_NODE_ID": "1",
            "KAFKA_PROCESS_ROLES": "broker,controller",
            "KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:{client},CONTROLLER://127.0.0.1:{controller}",
            "KAFKA_CONTROLLER_QUORUM_VOTERS": f"1@127.0.0.1:{controller}",
            "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        }
        with serving(command, tmp_path, {**variables, "PATH": f"{environment['PATH']}:/usr/sbin:/sbin"}) as bootstrap:
            write_and_read(bootstrap)
            scripts = ("chroot", f"--userspec={user}", root, "/opt/kafka/bin/kafka-topics.sh")
            assert "orders" in run(*scripts, "--bootstrap-server", bootstrap, "--list").splitlines()
            host, _, port = bootstrap.rpartition(":")
            inside(root, "nc", "-z", host, port)
        assert (volume / "meta.properties").stat().st_uid == int(user)
