"""The Helm chart: valid objects of Kubernetes, and pods that run as docs/deploy-kubernetes.md says."""

import json
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft7Validator

from tests.repository import REPOSITORY
from tests.system.chaos import containment
from tests.system.packages.kubernetes import CHART, NOT_HERE, render
from tools.apache_kafka import ToolchainMissingError
from tools.install_test_clients import KUBERNETES_VERSION, helm, kubernetes_schemas


@pytest.fixture(autouse=True)
def installed() -> None:
    try:
        helm()
        kubernetes_schemas()
    except ToolchainMissingError as reason:
        pytest.skip(str(reason))


@cache
def definitions() -> dict[str, Any]:
    """Kubernetes' own schemas. A field that they do not name is an error, as for `kubectl apply --validate=strict`."""
    found: dict[str, Any] = json.loads(kubernetes_schemas().read_text())["definitions"]
    for each in found.values():
        if "properties" in each:
            each["additionalProperties"] = False
    # A number of a port, a quantity or a percentage: the type in the description says string only.
    for name in ("util.intstr.IntOrString", "api.resource.Quantity"):
        found[f"io.k8s.apimachinery.pkg.{name}"] = {"type": ["string", "integer", "number"]}
    return found


def problems(thing: dict[str, Any]) -> list[str]:
    group, _, version = thing["apiVersion"].rpartition("/")
    kind = [{"group": group, "kind": thing["kind"], "version": version}]
    name = next(key for key, each in definitions().items() if each.get("x-kubernetes-group-version-kind") == kind)
    schema = {"$ref": f"#/definitions/{name}", "definitions": definitions()}
    return [f"{'/'.join(map(str, each.path))}: {each.message}" for each in Draft7Validator(schema).iter_errors(thing)]


@pytest.mark.parametrize(
    "options",
    [
        [],
        [
            "security.enabled=false",
            "rack.enabled=false",
            "replicas=1",
            "controllers=1",
            "persistence.storageClass=fast",
        ],
        ["replicas=5", "scaling.previousReplicas=3", "scaling.throttle=50000000", "imagePullSecrets[0].name=registry"],
        ["replicas=3", "scaling.previousReplicas=5", "resources.requests.cpu=2", "nodeSelector.disk=fast"],
    ],
)
def test_kubernetes_accepts_the_objects(options: list[str]) -> None:
    objects = render("shop", *(word for option in options for word in ("--set", option)))
    kinds = {each["kind"] for each in objects}
    assert {"StatefulSet", "Service", "PodDisruptionBudget", "ServiceAccount"} <= kinds
    assert {each["metadata"]["name"]: problems(each) for each in objects if problems(each)} == {}
    for each in objects:  # names of services are names in the DNS
        assert len(each["metadata"]["name"]) <= 63


def test_a_mistake_is_found() -> None:
    """The schemas are strict: otherwise the test above could not fail."""
    (wanted,) = (each for each in render("shop") if each["kind"] == "StatefulSet")
    wanted["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    wanted["spec"]["replicas"] = "three"
    assert len(problems(wanted)) == 2


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("replicas=0", "/replicas"),
        ("controllers=2", "/controllers"),
        ("replica=4", "replica"),
        ("persistence.size=large", "/persistence/size"),
        ("replicas=1", "controllers is larger than replicas"),
    ],
)
def test_wrong_values_are_refused(option: str, message: str) -> None:
    words = [*helm().command, "template", "--kube-version", KUBERNETES_VERSION, "shop", CHART, "--set", option]
    refused = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True)
    assert refused.returncode != 0 and message in refused.stderr, refused.stderr


def page(*arguments: str, limit_s: float) -> str:
    if not containment.is_possible():
        pytest.skip("network namespaces cannot be made here")
    command = [*containment.unshare(), sys.executable, "-m", "tests.system.packages.kubernetes", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=limit_s)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    return done.stdout


def test_three_secured_pods_form_a_cluster() -> None:
    """The page up to the use of the cluster. The rack of each broker is the zone of its machine."""
    output = page(limit_s=280)
    assert "partitions: 0 offline" in output
    for zone in ("zone-0", "zone-1", "zone-2"):
        assert zone in output


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_loss_of_a_pod_upgrade_and_scaling_under_load() -> None:
    output = page("--whole", limit_s=1400)
    assert "records acknowledged, 0 lost" in output
    for job in ("job millstream-balance", "job millstream-drain", "job millstream-unregister"):
        assert job in output
    assert "metadata.version" in output or NOT_HERE in output, "the upgrade was ended: levels of features were raised"
