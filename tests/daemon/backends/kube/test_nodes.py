"""Nodes that come while the daemon runs: it names them, and that it needs a restart to use them."""

import pytest

from daemon.backends.kube.config import KubeConfig
from daemon.backends.kube.nodes import KubeInventory, found_in
from sia.console.errors import UserError
from tests.daemon.backends.kube.test_kube import ONE
from tests.support.clusters.kube import GPU, cluster, node
from tests.support.clusters.kube_daemons import phase_is, serving, submit
from tests.support.daemons.daemons import until
from tests.support.daemons.doors import story

OTHERS = KubeInventory((("n1", (0, 1)),), {"speech": ("n1",)})
"""The nodes of a daemon that had another pool."""


def unused(service):
    """Why part `backend nodes` is not well, and the mend."""
    (part,) = [part for part in service.parts.all() if part.name == "backend nodes"] or [None]
    return None if part is None or part.ok else (part.why, part.mend)


@story
async def test_a_node_that_came_later_is_named_until_a_restart_has_it(tmp_path):
    async with cluster(("n1",)) as k8s:
        async with serving(tmp_path, k8s, pools=ONE) as service:
            k8s.make("nodes", node("cpus", 0))
            k8s.make("nodes", node("n2", 8))
            await until(lambda: unused(service))
            why, mend = unused(service)
            assert "1 node added after the daemon's start: n2" in why
            assert "restart the daemon" in mend
            k8s.remove("nodes", {"name": "n2"})
            await until(lambda: not unused(service))
            k8s.make("nodes", node("n2", 8))
            await until(lambda: unused(service))
            assert [*service.book.nodes] == ["n1"]
        async with serving(tmp_path, k8s, pools=ONE) as service:
            k8s.change("nodes", {"name": "n1"}, {"spec": {"unschedulable": True}})
            await until(lambda: service.book.nodes["n1"].reasons)
            await submit(service, "there")
            assert (await phase_is(service, "there", "finished")).nodes == (("n2", (0,)),)
            assert not unused(service)


@story
async def test_gpus_that_a_node_gained_are_named_and_nodes_of_no_pool_are_not(tmp_path):
    async with cluster(()) as k8s:
        k8s.make("nodes", node("n1", 8, kind="a"))
        nodes = {"vision": {"kind": "a"}}
        async with serving(tmp_path, k8s, pools=ONE, nodes=nodes) as service:
            k8s.make("nodes", node("others", 8, kind="b"))
            k8s.change("nodes", {"name": "n1"}, {"status": {"allocatable": {GPU: "16"}}})
            await until(lambda: unused(service))
            assert unused(service)[0].endswith("added after the daemon's start: n1")


@story
async def test_a_daemon_starts_although_its_last_node_is_gone_and_uses_it_again(tmp_path):
    async with cluster(()) as k8s:
        k8s.make("nodes", node("n1", 8, kind="a"))
        nodes = {"vision": {"kind": "a"}}
        async with serving(tmp_path, k8s, pools=ONE, nodes=nodes):
            pass
        k8s.remove("nodes", {"name": "n1"})
        async with serving(tmp_path, k8s, pools=ONE, nodes=nodes) as service:
            await until(lambda: service.book.nodes["n1"].reasons)
            assert service.book.nodes["n1"].reasons == {"backend": "no longer in Kubernetes"}
            await submit(service, "waits")
        with pytest.raises(
            UserError, match="no node with GPUs has the labels kind=b of pool vision"
        ):
            found_in([], KubeConfig(nodes={"vision": {"kind": "b"}}), ["vision"], OTHERS)
        async with serving(tmp_path, k8s, pools=ONE, nodes=nodes) as service:
            assert not service.book.jobs["waits"].placed
            k8s.make("nodes", node("n1", 8, kind="a"))
            assert (await phase_is(service, "waits", "finished")).nodes == (("n1", (0,)),)


@story
async def test_a_node_that_lost_gpus_while_the_daemon_was_down_is_out_until_they_are_back(tmp_path):
    async with cluster(("n1",)) as k8s:
        async with serving(tmp_path, k8s, pools=ONE) as service:
            await submit(service, "first")
            await phase_is(service, "first", "finished")
        k8s.change("nodes", {"name": "n1"}, {"status": {"allocatable": {GPU: "2"}}})
        async with serving(tmp_path, k8s, pools=ONE) as service:
            says = "Kubernetes reports 2 GPUs instead of 8"
            await until(lambda: service.book.nodes["n1"].reasons == {"backend": says})
            k8s.change("nodes", {"name": "n1"}, {"status": {"allocatable": {GPU: "8"}}})
            await until(lambda: not service.book.nodes["n1"].reasons)


@story
async def test_a_daemon_that_never_took_a_job_starts_although_its_nodes_shrank(tmp_path):
    async with cluster(("n1",)) as k8s:
        async with serving(tmp_path, k8s, pools=ONE):
            pass
        k8s.change("nodes", {"name": "n1"}, {"status": {"allocatable": {GPU: "2"}}})
        async with serving(tmp_path, k8s, pools=ONE) as service:
            says = "Kubernetes reports 2 GPUs instead of 8"
            await until(lambda: service.book.nodes["n1"].reasons == {"backend": says})
            k8s.change("nodes", {"name": "n1"}, {"status": {"allocatable": {GPU: "8"}}})
            await submit(service, "first")
            await phase_is(service, "first", "finished")
