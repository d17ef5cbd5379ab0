"""What a configuration of Kubernetes may say, and the rights that the docs ask for."""

import asyncio

import pytest

from daemon.backends.interface import LogRequest
from daemon.backends.kube import KubeSection
from daemon.backends.kube.attempts import name_of
from daemon.backends.kube.manifests import split
from daemon.config.read import ConfigError, read_config
from daemon.model.inputs import Cancel, Release
from tests.daemon.backends.kube.test_kube import POOL, taken_over
from tests.daemon.backends.kube.test_kueue import GATE, POOLS, QUEUE, TOLERANT, before, limits
from tests.support.clusters.kube import cluster, job
from tests.support.clusters.kube_daemons import phase_is, serving, submit
from tests.support.daemons.daemons import until
from tests.support.daemons.doors import story
from tests.support.paths import DOCS

PAGE = DOCS / "operate/kubernetes.md"


def read(folder, backend, pools=("vision", "speech")):
    text = f'[backend]\nkind = "kubernetes"\n{backend}\n'
    for name in pools:
        text += f'[[pool]]\nname = "{name}"\nquota = 8\n'
    path = folder / "sia.toml"
    path.write_text(text)
    return read_config(path)


def test_all_keys_of_the_docs_are_read(tmp_path):
    (tmp_path / "kubeconfig").write_text("{}")
    block = PAGE.read_text().split("```toml")[1].split("```")[0]
    lines = [line.removeprefix("# ") for line in block.splitlines()[3:]]
    parts = [line for line in lines if not line.startswith(("namespaces", "kueue"))]
    config = read(tmp_path, "\n".join(parts)).backend
    assert config == KubeSection(
        str(tmp_path / "kubeconfig"), "prod", namespace="gpu", image="registry/base:1",
        nodes={"vision": {"nvidia.com/gpu.product": "NVIDIA-H100"}},
    )  # fmt: skip
    parts = [line for line in lines if line.startswith(("namespaces", "kueue"))]
    config = read(tmp_path, "\n".join(parts)).backend
    assert config == KubeSection(namespaces={"vision": "team-a"}, kueue=True)


WRONG = {
    'kubeconfig = "nowhere"': "there is no file",
    'context = "prod"': "names an entry of a kubeconfig",
    'namespaces = { robots = "a" }': "there is no pool 'robots'",
    'namespaces = { vision = "speech" }': "pools vision and speech have the same namespace",
    'namespaces = { vision = "a" }\nnamespace = "b"': "remove namespaces",
    'namespaces = { vision = "A_b" }': "backend.namespaces",
    'nodes.vision = { a = "b" }\nkueue = true': "Kueue chooses nodes",
    'namespace = "-"': "is not a valid name",
    "poll = 0": "backend.poll",
    'gpu = "a b"': "backend.gpu",
    'home = "a/../b"': "backend.home",
}


@pytest.mark.parametrize("line", WRONG)
def test_an_impossible_configuration_is_refused(tmp_path, line):
    with pytest.raises(ConfigError) as wrong:
        read(tmp_path, line)
    assert WRONG[line] in str(wrong.value)


def test_pools_whose_names_are_not_namespaces_need_one(tmp_path):
    with pytest.raises(ConfigError, match="add a namespace for the pool"):
        read(tmp_path, "", ("Team A", "b"))
    with pytest.raises(ConfigError, match="cannot be the value of a label"):
        read(tmp_path, 'namespace = "gpu"', ("Team A", "b"))
    with pytest.raises(ConfigError, match="remove \\[\\[node\\]\\]"):
        read(tmp_path, '[[node]]\nname = "n"\ngpus = 99')


def test_names_of_jobs_are_valid_and_unique():
    ids = ["", "a", "A", "a-", "ü", "<script>", "\u202e", "x" * 4096, "x" * 4095, "a.0", "-"]
    names = {name_of("d", each, n) for each in ids for n in (1, 2)}
    assert len(names) == 2 * len(ids)
    assert all(len(name) <= 63 and name.strip("-") == name for name in names)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for name in names)
    assert name_of("d", "a", 1) != name_of("e", "a", 1)


def placed(*counts):
    nodes = tuple((f"n{i}", tuple(range(n))) for i, n in enumerate(counts))
    spec = type("Spec", (), {"gpus": sum(counts) or 6, "nodes": None if counts else 3})
    return type("Order", (), {"nodes": nodes, "spec": spec, "gpus": spec.gpus})


def test_pods_of_a_job_are_equal_and_as_large_as_possible():
    assert split(placed(8)) == (1, 8)
    assert split(placed(4, 4)) == (2, 4)
    assert split(placed(6, 4)) == (5, 2)
    assert split(placed(3, 5)) == (8, 1)
    assert split(placed()) == (3, 2)


def rights():
    """Those of the docs' table, with and without Kueue."""
    plain, kueue = set(), set()
    for line in PAGE.read_text().splitlines():
        cells = [each.strip() for each in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0] not in ("where", "---"):
            found = {(verb.strip(), cells[2]) for verb in cells[3].split(",")}
            (kueue if "`kueue`" in cells[0] else plain).update(found)
    return plain, kueue


@story
async def test_the_docs_list_exactly_the_rights_that_are_used(tmp_path):
    plain, _ = rights()
    async with cluster() as k8s, serving(tmp_path, k8s) as service:
        k8s.runs_for = None
        await submit(service, "own")
        made = k8s.make("jobs", job("theirs", labels=POOL), "vision")
        theirs = await taken_over(service, "theirs")
        await phase_is(service, theirs, "running")
        k8s.change("jobs", made["metadata"], {"spec": {"suspend": True}})
        await phase_is(service, theirs, "held")
        await service.submit([Release(theirs)])
        record = await phase_is(service, theirs, "running")
        await service.backend.read_log(record, LogRequest(record.attempt, "stdout", 0, None, 10))
        await service.submit([Cancel("own")])
        await phase_is(service, "own", "cancelled")
        await until(lambda: len(k8s.watches) == 3)
    assert set(k8s.verbs) == plain


@story
async def test_the_docs_list_exactly_the_rights_that_kueue_support_uses(tmp_path):
    plain, kueue = rights()
    async with cluster() as k8s:
        before(k8s)
        async with serving(tmp_path, k8s, pools=POOLS, kueue=True) as service:
            k8s.runs_for = None
            notes = {GATE: "sia.internal/sia"}
            k8s.make("jobs", job("one", labels=QUEUE, notes=notes, template=TOLERANT), "vision")
            job_id = await taken_over(service, "one")
            await phase_is(service, job_id, "running")
            await service.submit([Cancel(job_id)])
            await phase_is(service, job_id, "cancelled")
            await until(lambda: limits(k8s, "speech") == [("8", "3")])
            await asyncio.sleep(0)
    used = {(verb, kind) for verb, kind in k8s.verbs if kind in ("clusterqueues", "workloads")}
    assert used == kueue
    rest = {each for each in plain if each[1] not in ("nodes", "jobs/status")}
    assert set(k8s.verbs) - used <= rest
