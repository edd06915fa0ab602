"""In folders with Debian: the Debian package, and the file system of the container image."""

import os
import re
import sys
from pathlib import Path

import pytest

from millstream.testing.node_process import free_ports
from tests.system.packages.installations import debian, inside, plain_wheel, run, wheels_for
from tests.system.packages.pages import DOCKERFILE, entry_point
from tests.system.packages.test_wheels import serving, write_and_read

PYTHON_OF_DEBIAN = {"bookworm": "311", "trixie": "313"}


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_debian_package(tmp_path: Path) -> None:
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


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_the_file_system_of_the_image(tmp_path: Path) -> None:
    """The last stage of the Dockerfile, without a container engine: as user 1000, with a read-only root."""
    last_stage = re.sub(r"\\\n\s*", " ", DOCKERFILE.read_text().rpartition("\nFROM ")[2])
    suite = re.match(r"debian:(\w+)-slim", last_stage)
    assert suite is not None
    (user,) = re.findall(r"^USER (\d+)$", last_stage, re.M)
    (packages,) = re.findall(r"apt-get install --yes --no-install-recommends (.*?) &&", last_stage)
    (making,) = re.findall(r"&& (useradd .*)$", last_stage, re.M)
    environment = dict(word.split("=", 1) for word in re.findall(r"^ENV (.*)$", last_stage, re.M)[0].split())
    wheel = plain_wheel(tmp_path / "dist")
    with debian(suite.group(1), (*packages.split(), "python3-venv"), tmp_path) as root:
        inside(root, "sh", "-ec", making)
        wheels_for(PYTHON_OF_DEBIAN[suite.group(1)], root / "wheels", f"{wheel}[client,tier]")
        inside(root, "python3", "-m", "venv", "/opt/millstream")
        pip = ("/opt/millstream/bin/pip", "install", "--quiet", "--no-index", "--find-links", "/wheels")
        inside(root, *pip, f"millstream[client,tier] @ file:///wheels/{wheel.name}")
        (install,) = re.findall(r"&& (/opt/millstream/bin/millstream kafka-script .*)$", DOCKERFILE.read_text(), re.M)
        inside(root, *install.split())
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
            assert run(*scripts, "--bootstrap-server", bootstrap, "--list") == "orders\n"
            host, _, port = bootstrap.rpartition(":")
            inside(root, "nc", "-z", host, port)
        assert (volume / "meta.properties").stat().st_uid == int(user)
