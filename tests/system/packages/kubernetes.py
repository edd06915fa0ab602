"""Runs docs/deploy-kubernetes.md: its commands in a shell, what Helm renders as pods (`tests.system.packages.pods`).

A small stand-in for Kubernetes: it starts and stops the pods of a StatefulSet, asks their probes, calls `preStop`,
rolls updates from the last pod to the first, and runs the jobs of Helm's hooks. `--whole` runs all of the page under
load, and kills a pod; without it, the part up to the installation and use. The image that is installed first has the
previous version of Millstream then, so that the upgrade of the page is one. To be started by `unshare`
(`containment.unshare`).
"""

import json
import os
import re
import shlex
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from millstream.cli.security.cluster_files import CertificateAuthority
from millstream.raw_client.client_properties import librdkafka_settings, read_client_properties
from tests import previous_version
from tests.previous_version import NoSourceError, previous_source
from tests.repository import REPOSITORY
from tests.system.packages.pods import HUB, PATH, Pod, prepare, run
from tests.waiting import TIMEOUT_SECONDS, until
from tools.install_test_clients import KUBERNETES_VERSION, helm

PAGE = REPOSITORY / "docs" / "deploy-kubernetes.md"
CHART = "deploy/helm/millstream"
SERVICE = "millstream-nodes.default.svc.cluster.local"
MOST_PODS = 4
ACCOUNT = Path("/run/secrets/kubernetes.io/serviceaccount")
API_PORT = 6443
NOT_HERE = "without the previous version"


def render(release: str, *options: str) -> list[dict[str, Any]]:
    """The objects that Helm would send to Kubernetes."""
    command = [*helm().command, "template", "--kube-version", KUBERNETES_VERSION, release, CHART, *options]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def pod_address(number: int) -> str:
    return f"10.88.0.{10 + number}"


def serve_machines(directory: Path) -> None:
    """Kubernetes' API, as far as pods ask it: the zones of machines. Machine `machine-0` is in `zone-0`."""
    authority = CertificateAuthority.make("Kubernetes")
    (directory / "api.pem").write_text(authority.sign("kubernetes", [HUB], 1))
    ACCOUNT.mkdir(parents=True)
    (ACCOUNT / "ca.crt").write_text(authority.certificate_pem)
    (ACCOUNT / "token").write_text("the-token-of-the-pod\n")

    class Machines(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers["Authorization"] == "Bearer the-token-of-the-pod"
            number = self.path.removeprefix("/api/v1/nodes/machine-")
            zone = {"topology.kubernetes.io/zone": f"zone-{number}"}
            body = json.dumps({"kind": "Node", "metadata": {"labels": zone}}).encode()
            self.send_response(200 if allowed and number.isdigit() else 403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer((HUB, API_PORT), Machines)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "api.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


class Kubernetes:
    """The pods of one StatefulSet, their files, and the commands `kubectl` and `helm` of the page."""

    def __init__(self, directory: Path, previous: Path | None) -> None:
        """`previous`: the source of the version that is in the first image."""
        self._directory = directory
        self._previous = previous
        self._first_image = ""
        self.secrets: dict[str, Path] = {}
        self.pods: dict[int, Pod] = {}
        self._options: list[str] = []
        self._template: dict[str, Any] = {}

    def kubectl(self, words: Sequence[str]) -> str:
        match words:
            case ["create", "secret", "generic", name, *files]:
                place = self._directory / "secrets" / name
                place.mkdir(parents=True)
                for file in files:
                    key, source = file.removeprefix("--from-file=").split("=", 1)
                    (place / key).write_bytes((self._directory / source).read_bytes())
                    (place / key).chmod(0o440)
                self.secrets[name] = place
                return ""
            case ["exec", pod, "--", *command]:
                done = self.pods[int(pod.rpartition("-")[2])].exec(*command)
                assert done.returncode == 0, (command, done.stdout, done.stderr)
                return done.stdout
        raise AssertionError(f"kubectl {words} is not known here")

    def helm(self, words: Sequence[str]) -> None:
        verb, release, chart, *options = words
        assert (release, chart) == ("millstream", CHART)
        options = [each for each in options if each not in ("--wait", "--reuse-values")]
        self._options += options
        previous = ["--set", f"scaling.previousReplicas={len(self.pods)}"]
        objects = render(release, *self._options, *(previous if verb == "upgrade" else []))
        (wanted,) = (each["spec"] for each in objects if each["kind"] == "StatefulSet")
        jobs = [each for each in objects if each["kind"] == "Job"]
        self._run_jobs(jobs, "pre-upgrade")
        self._reconcile(wanted)
        self._run_jobs(jobs, "post-upgrade")

    def _run_jobs(self, jobs: Sequence[dict[str, Any]], hook: str) -> None:
        for job in jobs:
            if job["metadata"]["annotations"]["helm.sh/hook"] != hook:
                continue
            spec = job["spec"]["template"]["spec"]
            for container in (*spec.get("initContainers", ()), *spec["containers"]):
                script = "".join(
                    f"mount --bind '{source}' '{place}'\n"
                    for place, source in self._mounts(spec, container, -1).items()
                )
                command = ["unshare", "--mount", "sh", "-ec", f'{script}exec "$@"', "sh", *container["command"]]
                done = subprocess.run(
                    command, env={"PATH": PATH, "LANG": "C.UTF-8"}, capture_output=True, text=True, timeout=600
                )
                print(f"job {job['metadata']['name']}: {shlex.join(container['command'][:5])}: {done.stdout[-200:]!r}")
                assert done.returncode == 0, (container["command"], done.stdout, done.stderr)

    def _reconcile(self, wanted: dict[str, Any]) -> None:
        template, count = wanted["template"]["spec"], int(wanted["replicas"])
        self._first_image = self._first_image or template["containers"][0]["image"]
        for number in sorted((each for each in self.pods if each >= count), reverse=True):
            self.stop(number)
            del self.pods[number]
        changed, self._template = bool(self._template) and template != self._template, template
        if changed:
            for number in sorted(self.pods, reverse=True):
                self.stop(number)
                self.start(number)
                self.wait_until_ready(number)
        new = [number for number in range(count) if number not in self.pods]
        assert wanted["podManagementPolicy"] == "Parallel"
        for number in new:
            self.start(number)
        for number in new:
            self.wait_until_ready(number)

    @property
    def _container(self) -> dict[str, Any]:
        found: dict[str, Any] = self._template["containers"][0]
        return found

    def start(self, number: int) -> None:
        name, container = f"millstream-{number}", self._container
        values: dict[str, str] = {"KUBERNETES_SERVICE_HOST": HUB, "KUBERNETES_SERVICE_PORT": str(API_PORT)}
        fields = {"metadata.name": name, "spec.nodeName": f"machine-{number}"}
        for each in container["env"]:
            value = each.get("value", "")
            if "valueFrom" in each:
                value = fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
            values[each["name"]] = re.sub(r"\$\((\w+)\)", lambda found: values[found.group(1)], value)
        if self._previous is not None and container["image"] == self._first_image:
            values["PYTHONPATH"] = str(self._previous)
            values |= {
                f"KAFKA_{key.replace('.', '_').upper()}": each for key, each in previous_version.SETTINGS.items()
            }
        pod = Pod(
            name,
            pod_address(number),
            [*container["command"], *container.get("args", ())],
            values,
            self._mounts(self._template, container, number),
            self._directory / f"{name}.log",
        )
        self.pods[number] = pod
        pod.start()

    def _mounts(self, spec: Mapping[str, Any], container: Mapping[str, Any], number: int) -> dict[str, Path]:
        volumes = {each["name"]: each for each in spec["volumes"]}
        mounts = {}
        for each in container["volumeMounts"]:
            volume = volumes.get(each["name"], {})
            if each["mountPath"] == "/tmp":
                continue  # the files of this run are there
            if "secret" in volume:
                mounts[each["mountPath"]] = self.secrets[volume["secret"]["secretName"]]
            else:
                mounts[each["mountPath"]] = self._directory / "volumes" / f"{each['name']}-{number}"
        return mounts

    def wait_until_ready(self, number: int) -> None:
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            request = self._container[kind]["httpGet"]
            ports = {each["name"]: each["containerPort"] for each in self._container["ports"]}
            self.pods[number].wait_for(request["path"], ports[request["port"]], tls=request["scheme"] == "HTTPS")

    def stop(self, number: int) -> None:
        """As Kubernetes deletes a pod: `preStop`, SIGTERM, and SIGKILL only after the grace period."""
        pod = self.pods[number]
        before = pod.exec(*self._container["lifecycle"]["preStop"]["exec"]["command"])
        assert (before.returncode, before.stderr) == (0, ""), before.stderr
        assert pod.terminate() == 0, pod.tail()


class Load:
    """A producer that never stops, and what it was told: each number that was acknowledged must be read at the end."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        quiet = {"linger.ms": 5, "enable.idempotence": True, "delivery.timeout.ms": 300_000, "log_level": 2}
        self._producer = Producer({**settings, **quiet})
        self.acknowledged: set[int] = set()
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def _produce(self) -> None:
        number = 0
        while not self._stop.is_set():
            self._producer.produce("orders", str(number).encode(), str(number), on_delivery=self._delivered)
            number += 1
            self._producer.poll(0.002)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acknowledged.add(int(message.value() or b""))

    def progress(self) -> None:
        """Waits until more records were acknowledged than now."""
        seen = len(self.acknowledged)
        until(lambda: len(self.acknowledged) > seen + 50, f"no record was acknowledged; {self.failed[:3]}")

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(TIMEOUT_SECONDS) == 0
        assert not self.failed, self.failed[:5]
        lost = self.acknowledged - self._read()
        assert not lost, f"{len(lost)} of {len(self.acknowledged)} records are lost, for example {sorted(lost)[:5]}"
        print(f"{len(self.acknowledged)} records acknowledged, 0 lost")

    def _read(self) -> set[int]:
        consumer = Consumer({**self._settings, "group.id": "check", "enable.partition.eof": True, "log_level": 2})
        partitions = consumer.list_topics("orders", TIMEOUT_SECONDS).topics["orders"].partitions
        consumer.assign([TopicPartition("orders", each, 0) for each in partitions])
        found, at_end, deadline = set[int](), set[int](), time.monotonic() + TIMEOUT_SECONDS
        while len(at_end) < len(partitions):
            assert time.monotonic() < deadline, "the end was not reached"
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.add(int(message.value() or b""))
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition() or 0)
        consumer.close()
        return found


def commands() -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    return [block.strip() for block in blocks]


def main(whole: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        prepare({f"millstream-{each}.{SERVICE}": pod_address(each) for each in range(MOST_PODS)})
        serve_machines(directory)
        try:
            previous = previous_source(directory / "previous") if whole else None
        except NoSourceError as reason:
            print(f"{NOT_HERE}: {reason}")
            previous = None
        cluster, load = Kubernetes(directory, previous), None
        try:
            for block in commands():
                lines = block.splitlines()
                if not lines[0].startswith(("kubectl ", "helm ")):
                    run("sh", "-ec", f"cd {directory}; PATH={PATH}; {block}")
                    continue
                for line in lines:
                    program, *words = shlex.split(line)
                    print(f"{program} {' '.join(words)[:90]}", flush=True)
                    if program == "kubectl":
                        print(cluster.kubectl(words))
                        continue
                    if words[0] == "upgrade" and not whole:
                        return
                    if words[0] == "upgrade" and load is None:
                        load = Load(_connection(directory))
                        load.progress()
                        _lose_a_pod(cluster, load)
                    cluster.helm(words)
                    if load is not None:
                        load.progress()
            assert load is not None
            load.finish()
        finally:
            if load is not None:
                load._stop.set()
            for pod in cluster.pods.values():
                pod.kill()


def _connection(directory: Path) -> dict[str, Any]:
    settings = read_client_properties(str(directory / "secured" / "client" / "client.properties"))
    bootstrap = {"bootstrap.servers": ",".join(f"millstream-{each}.{SERVICE}:9092" for each in range(3))}
    return {**librdkafka_settings(settings), **bootstrap}


def _lose_a_pod(cluster: Kubernetes, load: Load) -> None:
    """A machine is lost: the pod comes back on another one, with its volume."""
    cluster.pods[1].kill()
    load.progress()
    cluster.start(1)
    cluster.wait_until_ready(1)
    load.progress()
    print("a pod was lost, and is back in sync", flush=True)


if __name__ == "__main__":
    os.environ.pop("NOTIFY_SOCKET", None)
    main("--whole" in sys.argv)
    print("done")
