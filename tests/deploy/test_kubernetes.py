"""Manifests: Kubernetes knows each key, rights are those of the table, and nothing runs as root."""

import json
import re
import tomllib
from collections import defaultdict
from functools import cache
from itertools import product

import pytest
import yaml
from msgspec.structs import fields

from daemon.backends.kube import KubeSection
from tests.support.daemons.deployed import DEPLOY, DOCS, run
from tests.support.servers.servers import needs

FOLDER = DEPLOY / "kubernetes"

VERSIONS = ("1.29", "1.37")
"""Of Kubernetes, between which all are taken to be understood."""


@cache
def made(overlay):
    """The objects that `kubectl apply -k` would send."""
    needs("kubectl")
    code, said = run("kubectl", "kustomize", FOLDER / overlay)
    assert code == 0, said
    return [each for each in yaml.safe_load_all(said) if each]


def plain():
    """Objects of the files that are applied as they are."""
    return [each for path in FOLDER.glob("*.yaml") for each in yaml.safe_load_all(path.read_text())]


def one(objects, kind, name="sia"):
    (found,) = [x for x in objects if x["kind"] == kind and x["metadata"]["name"] == name]
    return found


@pytest.mark.server
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_accepts_each_key_of_the_manifests(version):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for each in (*made("base"), *made("postgres"), *plain()):
        kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.server
def test_an_unknown_key_in_a_manifest_is_detected():
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    wrong = json.loads(json.dumps(one(made("base"), "StatefulSet")))
    wrong["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.server
@pytest.mark.parametrize("overlay", ["base", "postgres"])
def test_the_pod_has_the_least_privileges(overlay):
    spec = one(made(overlay), "StatefulSet")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounted = {mount["mountPath"] for mount in container["volumeMounts"] if "readOnly" not in mount}
    assert mounted == {"/var/lib/sia", "/tmp"}


@pytest.mark.server
def test_the_user_of_the_image_owns_its_files():
    spec = one(made("base"), "StatefulSet")["spec"]["template"]["spec"]["securityContext"]
    user = re.search(r"(?m)^USER (\d+):(\d+)$", (DEPLOY / "container/Containerfile").read_text())
    assert (str(spec["runAsUser"]), str(spec["fsGroup"])) == user.groups()


@pytest.mark.server
def test_a_journal_on_a_volume_has_one_daemon_and_a_postgresql_two():
    assert one(made("base"), "StatefulSet")["spec"]["replicas"] == 1
    assert one(made("postgres"), "StatefulSet")["spec"]["replicas"] == 2
    configs = [x for x in made("postgres") if x["kind"] == "ConfigMap"]
    assert 'database = "postgresql://' in configs[0]["data"]["sia.toml"]
    ports = {
        port["port"]
        for rule in one(made("postgres"), "NetworkPolicy")["spec"]["egress"]
        for port in rule["ports"]
    }
    assert 5432 in ports


def test_no_image_is_pulled_before_one_is_configured():
    """The name `sia` alone would be somebody's on the registry that all clusters know."""
    (image,) = yaml.safe_load((FOLDER / "base" / "kustomization.yaml").read_text())["images"]
    assert image["newName"].split("/")[0].endswith(".invalid")


def rights():
    """What all roles give: API group, resource, verbs, and whether in the whole cluster."""
    objects = [*plain(), *yaml.safe_load_all((FOLDER / "base" / "rights.yaml").read_text())]
    given = defaultdict(set)
    for each in objects:
        for rule in each["rules"] if each["kind"] in {"Role", "ClusterRole"} else ():
            for group, resource in product(rule["apiGroups"], rule["resources"]):
                given[each["kind"] == "ClusterRole", group, resource].update(rule["verbs"])
    return given


def table():
    """The same, as docs/operate/kubernetes.md has it."""
    rows = re.findall(
        r"(?m)^\| ([^|]+) \| ([a-z0-9.-]+) \| ([a-z/]+) \| ([a-z, ]+) \|",
        (DOCS / "operate/kubernetes.md").read_text(),
    )
    return {
        (where.startswith("cluster"), "" if group == "core" else group, resource): set(
            verbs.split(", ")
        )
        for where, group, resource, verbs in rows
        if group != "---"
    }


def test_rights_are_those_that_the_backend_needs():
    assert table()
    assert rights() == table()


def test_the_daemon_may_change_only_its_own_lease():
    objects = yaml.safe_load_all((FOLDER / "base" / "rights.yaml").read_text())
    rules = [rule for each in objects for rule in each.get("rules", ())]
    named = {
        verb: rule.get("resourceNames")
        for rule in rules
        if rule["resources"] == ["leases"]
        for verb in rule["verbs"]
    }
    own = [next(key.default for key in fields(KubeSection) if key.name == "lease")]
    assert named == {"create": None, "get": own, "patch": own}


def test_with_kueue_it_may_change_the_queues_of_its_pools_alone():
    (rules,) = [
        each["rules"]
        for each in yaml.safe_load_all((FOLDER / "kueue.yaml").read_text())
        if each["kind"] == "ClusterRole"
    ]
    pools = tomllib.loads((FOLDER / "base" / "sia.toml").read_text())["pool"]
    assert [rule["resourceNames"] for rule in rules] == [[pool["name"] for pool in pools]]
