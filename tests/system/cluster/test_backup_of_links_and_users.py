"""Backups of a secured cluster, taken by a user with no more rights than docs/backups.md says, and of a cluster with a
mirror link. Each is restored on nodes with other ids, with the same certificates and the same source."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.backup.creating import Options, create_backup
from millstream.backup.repository import Repository
from millstream.backup.restoring import restore_backup
from millstream.raw_client import Cluster
from millstream.testing import EmbeddedBroker, EmbeddedCluster
from millstream.testing.node_process import NodeProcess, free_port_range
from tests.mirrors import Mirror, make_source_topic, produce, read_all
from tests.repository import REPOSITORY
from tests.system.cluster.test_secured_cluster import Secured
from tests.waiting import TIMEOUT_SECONDS

PASSWORDS = {"alice": "alice-has-a-password-9", "keeper": "keeper-has-a-password-9"}


def started(directory: Path) -> list[NodeProcess]:
    files = sorted(directory.glob("node-*/server.properties"))
    nodes = [
        NodeProcess(file.parent.name, ["--no-http", "--config", str(file)], file.parent / "log", stop_timeout=20)
        for file in files
    ]
    for node in nodes:
        node.spawn()
    for node in nodes:
        node.wait_until_ready(TIMEOUT_SECONDS)
    return nodes


def moved(file: Path, into: Path) -> None:
    """The settings of a node with another id and another data directory, and the same certificates."""
    number = int(re.findall(r"node\.id=(\d+)", file.read_text())[0]) + 3
    text = file.read_text().replace(f"node.id={number - 3}\n", f"node.id={number}\n")
    text = re.sub(r"(\d)@", lambda found: f"{int(found[1]) + 3}@", text)
    text = re.sub(r"log\.dirs=.*", f"log.dirs={into}/node-{number}/data", text)
    (into / f"node-{number}").mkdir(parents=True)
    (into / f"node-{number}" / "server.properties").write_text(text)


@pytest.mark.slow
def test_a_secured_cluster_is_restored_with_its_users(tmp_path: Path) -> None:
    made, repository, restored = tmp_path / "made", tmp_path / "backups", tmp_path / "restored"
    port = free_port_range(40)
    init = [sys.executable, "-m", "millstream", "security", "init", str(made), "--port", str(port)]
    assert subprocess.run(init, capture_output=True).returncode == 0
    nodes = started(made)
    secured = Secured(made, nodes)

    def run(*words: str, user: str | None = None, stdin: str = "") -> str:
        file = secured.file_of(user, PASSWORDS[user]) if user else None
        done = secured.run(*words, file=file, stdin=stdin)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    try:
        run("topic", "create", "orders", "--partitions", "3")
        run("produce", "orders", stdin="".join(f"{number}\n" for number in range(500)))
        for name, password in PASSWORDS.items():
            run("user", "add", name, "--password-file", "-", stdin=f"{password}\n")
        run("acl", "add", "User:alice", "consume", "--topic", "orders", "--group", "*")
        (rights,) = re.findall(r"```sh rights\n(.*?)```", (REPOSITORY / "docs" / "backups.md").read_text(), re.S)
        for line in rights.strip().splitlines():
            run(*line.replace("'*'", "*").split()[1:])
        controllers = made / "controllers.properties"
        keys = f"ssl.keystore.type=PEM\nssl.keystore.location={made}/node-1/keystore.pem\n"
        trust = f"ssl.truststore.type=PEM\nssl.truststore.location={made}/node-1/ca.pem\n"
        controllers.write_text(f"security.protocol=SSL\n{keys}{trust}")
        create = ("backup", "create", str(repository))
        refused = secured.run(*create, file=secured.file_of("keeper", PASSWORDS["keeper"]))
        assert refused.returncode == 1 and "--controller-config" in refused.stderr, refused.stderr
        controller = ("--bootstrap-controller", f"localhost:{port + 1}", "--controller-config", str(controllers))
        refused = secured.run(*create, *controller, file=secured.file_of("alice", PASSWORDS["alice"]))
        assert refused.returncode != 0 and "Traceback" not in refused.stderr, refused.stderr
        run(*create, *controller, user="keeper")
        acls = run("acl", "list", "--json")
        read = run("consume", "orders", user="alice")
        assert len(read.splitlines()) == 500
    finally:
        for node in nodes:
            node.reap(signal.SIGKILL)
    for file in sorted(made.glob("node-*/server.properties")):
        moved(file, restored)
    words = [f"--node={number}={restored}/node-{number}/data" for number in (4, 5, 6)]
    verified = [sys.executable, "-m", "millstream", "backup", "verify", str(repository)]
    assert subprocess.run(verified, capture_output=True).returncode == 0
    done = subprocess.run(
        [sys.executable, "-m", "millstream", "backup", "restore", str(repository), *words], capture_output=True
    )
    assert done.returncode == 0, done.stderr
    nodes = started(restored)
    try:
        assert run("acl", "list", "--json") == acls
        assert sorted(run("consume", "orders", user="alice").split()) == sorted(read.split())
        refused = secured.run("produce", "orders", "x", file=secured.file_of("alice", PASSWORDS["alice"]))
        assert refused.returncode != 0 and "AUTHORIZATION" in refused.stderr.upper(), refused.stderr
        wrong = secured.run("topic", "list", file=secured.file_of("alice", "a-wrong-password-9"))
        assert wrong.returncode != 0
        run("produce", "orders", "later")
        assert len(run("consume", "orders", user="alice").splitlines()) == 501
        assert " 0 offline" in run("cluster", "status")
    finally:
        for node in nodes:
            node.reap(signal.SIGKILL)


@pytest.mark.slow
def test_a_mirror_link_goes_on_from_the_same_source(tmp_path: Path) -> None:
    with EmbeddedBroker() as source:
        servers = source.bootstrap_servers
        make_source_topic(servers, "orders")
        produce(servers, "orders", [str(number) for number in range(100)])
        with EmbeddedCluster(1, data_dir=tmp_path / "old") as old:
            link = Mirror("east", servers, old.bootstrap_servers).create("orders")
            link.await_topic("orders")
            link.await_equal("orders")
            with Cluster(old.bootstrap_servers) as cluster, Repository(str(tmp_path / "backups")) as repository:
                manifest = create_backup(cluster, repository, Options())
        produce(servers, "orders", [str(number) for number in range(100, 150)])
        with Repository(str(tmp_path / "backups")) as repository:
            restore_backup(repository, manifest, {4: str(tmp_path / "new" / "node-4" / "data")})
        with EmbeddedCluster(1, data_dir=tmp_path / "new", first_node=4) as new:
            link = Mirror("east", servers, new.bootstrap_servers)
            link.await_topic("orders")
            link.await_equal("orders")
            produce(servers, "orders", [str(number) for number in range(150, 200)])
            link.await_equal("orders")
            assert read_all(new.bootstrap_servers, "orders") == read_all(servers, "orders")
