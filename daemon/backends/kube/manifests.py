"""What is sent to Kubernetes: Jobs that are made, released, ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, gcd
from typing import Any

from daemon.backends.kube.attempts import name_of
from daemon.backends.kube.config import KubeConfig
from daemon.backends.kube.schema import (
    ATTEMPT,
    DAEMON,
    GATE,
    GATE_OWN,
    HOSTNAME,
    JOB,
    ORDER,
    OVER,
    POOL,
    QUEUE,
    RELEASED,
    KubeJob,
    PodSpec,
)
from daemon.model.job import JobSpec
from daemon.model.outputs import StartEffect

KubeManifest = dict[str, Any]

GRACE = 60
"""Seconds that Kubernetes' own limit is longer: the daemon ends jobs at the second, says why."""

ALONE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What no job needs is not given: the baseline of Pod Security admits such pods."""


def split(order: StartEffect) -> tuple[int, int]:
    """Pods, and GPUs of each: as many on a node as were decided there."""
    spec = order.spec
    counts = [len(gpus) for _, gpus in order.nodes]
    if not counts:  # where Kueue places it
        pods = spec.nodes or 1
        return pods, spec.gpus // pods
    each = gcd(*counts)
    return sum(counts) // each, each


def new_job(config: KubeConfig, daemon: str, order: StartEffect) -> KubeManifest:
    """The Job of an attempt, suspended."""
    spec, (pods, gpus) = order.spec, split(order)
    labels = {"app.kubernetes.io/managed-by": "sia"}
    if config.namespace:
        labels[POOL] = spec.pool
    notes = {DAEMON: daemon, JOB: spec.id, ORDER: str(order.attempt)}
    own = {QUEUE: config.local_queue_of(spec.pool)} if config.kueue else {}
    gate = {GATE: GATE_OWN} if config.kueue else {}
    body: KubeManifest = {
        "suspend": True,
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "ttlSecondsAfterFinished": int(config.keep),
        "template": {"metadata": {"labels": labels}, "spec": _pod(config, spec, pods, gpus)},
    }
    if spec.time_limit is not None:
        body["activeDeadlineSeconds"] = ceil(spec.time_limit) + GRACE
    return {
        "apiVersion": "batch/v1",
        "kind": "KubeJob",
        "metadata": {
            "name": name_of(daemon, spec.id, order.attempt),
            "namespace": config.namespace_of(spec.pool),
            "labels": {**labels, **own},
            "annotations": {**notes, **gate},
        },
        "spec": body,
    }


def _pod(config: KubeConfig, spec: JobSpec, pods: int, gpus: int) -> KubeManifest:
    env = {**spec.env, "SIA_JOB_ID": spec.id, "SIA_POOL": spec.pool, "SIA_PODS": str(pods)}
    if spec.array is not None:
        env |= {"SIA_ARRAY_INDEX": str(spec.array[0]), "SIA_ARRAY_SIZE": str(spec.array[1])}
    container: KubeManifest = {
        "name": "job",
        "image": config.image,
        "command": [_as_it_is(word) for word in spec.command],
        "env": [{"name": key, "value": _as_it_is(value)} for key, value in env.items()],
        "resources": {"limits": {config.gpu: str(gpus)}},
        "securityContext": ALONE,
    }
    if spec.cwd:
        container["workingDir"] = spec.cwd
    body: KubeManifest = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [container],
    }
    if config.kueue:  # which changes no more of it than its flavors say
        body["tolerations"] = _tolerations([], config.tolerations)
    if pods > 1 and spec.nodes == pods:
        body["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": HOSTNAME,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {},
                "matchLabelKeys": ["controller-uid"],
            }
        ]
    return body


def _as_it_is(word: str) -> str:
    """A word in which Kubernetes finds nothing to put in: it takes `$(X)` for a variable."""
    return word.replace("$", "$$")


def release(
    config: KubeConfig,
    daemon: str,
    order: StartEffect,
    job: KubeJob,
    hosts: Sequence[str],
    seal: str,
) -> KubeManifest:
    """Have a Job run on those nodes, if it is still as it was seen: all by one request."""
    spec, notes = job.spec.template.spec, {**_notes(daemon, order), RELEASED: seal}
    again = bool(job.metadata.note(ATTEMPT))
    pod: KubeManifest = {"tolerations": _tolerations(spec.tolerations or [], config.tolerations)}
    one = hosts[0] if len(hosts) == 1 else None
    if one or again:
        pod["nodeSelector"] = {HOSTNAME: one}
    if len(hosts) > 1 or again:
        pod["affinity"] = {"nodeAffinity": _only(spec.affinity or {}, hosts, again=again)}
    return {
        "metadata": {"resourceVersion": job.metadata.resource_version, "annotations": notes},
        "spec": {"suspend": False, "template": {"spec": pod}},
    }


def to_kueue(daemon: str, order: StartEffect, job: KubeJob) -> KubeManifest:
    """Have Kueue look at a Job, if it is still as it was seen."""
    others = ",".join(gate for gate in job.gates if gate != GATE_OWN)
    notes: dict[str, str | None] = {**_notes(daemon, order), GATE: others or None}
    return {"metadata": {"resourceVersion": job.metadata.resource_version, "annotations": notes}}


def is_marked(config: KubeConfig, daemon: str, order: StartEffect, job: KubeJob) -> bool:
    """Whether a Job says that this attempt of this job was released by this daemon.

    Who may write to a Job may say so, too, and copies of others say what those did.
    """
    own = _notes(daemon, order)
    gone = config.kueue and GATE_OWN in job.gates
    return not gone and all(job.metadata.note(key) == value for key, value in own.items())


def is_bound(spec: PodSpec, hosts: Sequence[str]) -> bool:
    """Whether pods of that kind can be on these nodes alone."""
    if len(hosts) == 1:
        return (spec.node_selector or {}).get(HOSTNAME) == hosts[0]
    node = (spec.affinity or {}).get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    wanted = {"key": HOSTNAME, "operator": "In", "values": list(hosts)}
    terms = required.get("nodeSelectorTerms") or [{}]
    return all(wanted in (term.get("matchExpressions") or []) for term in terms)


def unstarted(job: KubeJob) -> KubeManifest:
    """Forget that a suspended Job ran before: only then Kubernetes lets its nodes be changed."""
    return {
        "metadata": {"resourceVersion": job.metadata.resource_version},
        "status": {"startTime": None},
    }


def narrowed(job: KubeJob, pods: int) -> KubeManifest:
    """Have a Job run so many pods at a time, and no more in all where the daemon has made it."""
    whole = {"completions": pods} if job.metadata.note(ORDER) else {}
    return {
        "metadata": {"resourceVersion": job.metadata.resource_version},
        "spec": {"parallelism": pods, **whole},
    }


def suspend(job: KubeJob, over: str = "") -> KubeManifest:
    """Have a Job leave its nodes; with `over` for good, and why."""
    notes = {"annotations": {OVER: over}} if over else {}
    return {
        "metadata": {"resourceVersion": job.metadata.resource_version, **notes},
        "spec": {"suspend": True},
    }


def _notes(daemon: str, order: StartEffect) -> dict[str, str]:
    return {DAEMON: daemon, JOB: order.job, ATTEMPT: str(order.attempt)}


def _tolerations(there: Sequence[KubeManifest], keys: Sequence[str]) -> list[KubeManifest]:
    own: list[KubeManifest] = [{"key": key, "operator": "Exists"} for key in keys]
    return [*there, *(each for each in own if each not in there)]


def _only(affinity: Mapping[str, Any], hosts: Sequence[str], *, again: bool) -> KubeManifest:
    """What was required of nodes, and that they are these; `again`: what is ours goes first."""
    node = affinity.get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = required.get("nodeSelectorTerms") or [{}]
    wanted = {"key": HOSTNAME, "operator": "In", "values": list(hosts)}
    found = []
    for term in terms:
        others = list(term.get("matchExpressions") or [])
        if again and others and others[-1].get("key") == HOSTNAME:
            others.pop()
        mine = [wanted] if len(hosts) > 1 else []
        found.append({**term, "matchExpressions": [*others, *mine]})
    if not any(term["matchExpressions"] or term.get("matchFields") for term in found):
        return {"requiredDuringSchedulingIgnoredDuringExecution": None}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": found}}
