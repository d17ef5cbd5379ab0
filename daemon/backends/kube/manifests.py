"""Manifests and patches that create, release and end Jobs."""

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
    INDEX,
    JOB,
    ORDER,
    OVER,
    POOL,
    QUEUE,
    RELEASED,
    KubeJob,
    PodSpec,
    gpus_of_pod,
)
from daemon.model.outputs import StartEffect
from sia.state.checkpoint import CheckpointCommand, parse_checkpoint

KubeManifest = dict[str, Any]

GRACE = 60
"""Seconds added to Kubernetes' deadline, because the daemon itself ends jobs to the second, with a
reason."""

RANK = "SIA_RANK"
"""Environment variable with the index of a pod among the pods of the Job."""

NO_REPORTS: Mapping[str, str] = {}

ALONE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""Restricted security context, which the restricted level of Pod Security admits."""


def split(order: StartEffect) -> tuple[int, int]:
    """Return the number of pods, and GPUs per pod, that match the placement."""
    spec = order.spec
    counts = [len(gpus) for _, gpus in order.nodes]
    if not counts:  # placed by Kueue
        pods = spec.nodes or 1
        each = max(1, spec.gpus // pods)
        if order.gpus % each == 0:  # all pods of the job, or some of them in a trial
            pods = order.gpus // each
        elif order.gpus % pods:
            pods = 1
        return pods, order.gpus // pods
    each = gcd(*counts)
    return sum(counts) // each, each


def new_job(
    config: KubeConfig,
    daemon: str,
    order: StartEffect,
    grace: float,
    reports: Mapping[str, str] = NO_REPORTS,
) -> KubeManifest:
    """Return the suspended Job of an attempt, whose pods have `grace` seconds after SIGTERM.

    `reports` are the variables with which the job can report its progress.
    """
    spec, (pods, _) = order.spec, split(order)
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
        "template": {"metadata": {"labels": labels}, "spec": _pod(config, order, grace, reports)},
    }
    if spec.time_limit is not None:
        body["activeDeadlineSeconds"] = ceil(spec.time_limit) + GRACE
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name_of(daemon, spec.id, order.attempt),
            "namespace": config.namespace_of(spec.pool),
            "labels": {**labels, **own},
            "annotations": {**notes, **gate},
        },
        "spec": body,
    }


def _pod(
    config: KubeConfig, order: StartEffect, grace: float, reports: Mapping[str, str]
) -> KubeManifest:
    spec, (pods, gpus) = order.spec, split(order)
    env = {**spec.env, "SIA_JOB_ID": spec.id, "SIA_ATTEMPT": str(order.attempt)}
    env |= {"SIA_POOL": spec.pool, "SIA_PODS": str(pods), "SIA_WIDTH": str(order.gpus), **reports}
    if spec.array is not None:
        env |= {"SIA_ARRAY_INDEX": str(spec.array[0]), "SIA_ARRAY_SIZE": str(spec.array[1])}
    env.pop(RANK, None)
    container: KubeManifest = {
        "name": "job",
        "image": config.image,
        "command": [_as_it_is(word) for word in spec.command],
        "env": [
            *({"name": key, "value": _as_it_is(value)} for key, value in env.items()),
            {
                "name": RANK,
                "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}},
            },
        ],
        "resources": {"limits": {config.gpu: str(gpus)}},
        "securityContext": ALONE,
    }
    if spec.cwd:
        container["workingDir"] = spec.cwd
    how = parse_checkpoint(spec.checkpoint)
    if isinstance(how, CheckpointCommand):  # the kubelet runs it before it sends SIGTERM
        saves = [_as_it_is(word) for word in how.command]
        container["lifecycle"] = {"preStop": {"exec": {"command": saves}}}
    body: KubeManifest = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": ceil(grace),
        "containers": [container],
    }
    if config.kueue:  # Kueue changes only what its flavors define
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
    """Escape a word: Kubernetes expands `$(X)`."""
    return word.replace("$", "$$")


def release(
    config: KubeConfig,
    daemon: str,
    order: StartEffect,
    job: KubeJob,
    hosts: Sequence[str],
    seal: str,
) -> KubeManifest:
    """Return the patch that releases a Job to nodes, and fails if the Job has changed."""
    spec, notes = job.spec.template.spec, {**_notes(daemon, order), RELEASED: seal}
    again = bool(job.metadata.note(ATTEMPT))
    pod: KubeManifest = {"tolerations": _tolerations(spec.tolerations or [], config.tolerations)}
    one = hosts[0] if len(hosts) == 1 else None
    if one or again:
        pod["nodeSelector"] = {HOSTNAME: one}
    if len(hosts) > 1 or again:
        pod["affinity"] = {"nodeAffinity": _only(spec.affinity or {}, hosts, again=again)}
    width = widened(job, pods_of_width(config, order, job)) if order.spec.elastic else {}
    return {
        "metadata": {"resourceVersion": job.metadata.resource_version, "annotations": notes},
        "spec": {"suspend": False, **width, "template": {"spec": pod}},
    }


def to_kueue(daemon: str, order: StartEffect, job: KubeJob) -> KubeManifest:
    """Return the patch that hands a Job to Kueue, if it is unchanged."""
    others = ",".join(gate for gate in job.gates if gate != GATE_OWN)
    notes: dict[str, str | None] = {**_notes(daemon, order), GATE: others or None}
    return {"metadata": {"resourceVersion": job.metadata.resource_version, "annotations": notes}}


def is_marked(config: KubeConfig, daemon: str, order: StartEffect, job: KubeJob) -> bool:
    """Return whether a Job is marked as released by this daemon for this attempt.

    Anyone with write access can set the mark, and copies of a Job inherit it.
    """
    own = _notes(daemon, order)
    gone = config.kueue and GATE_OWN in job.gates
    return not gone and all(job.metadata.note(key) == value for key, value in own.items())


def is_bound(spec: PodSpec, hosts: Sequence[str]) -> bool:
    """Return whether pods of this template can only run on these hosts."""
    if len(hosts) == 1:
        return (spec.node_selector or {}).get(HOSTNAME) == hosts[0]
    node = (spec.affinity or {}).get("nodeAffinity") or {}
    required = node.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    wanted = {"key": HOSTNAME, "operator": "In", "values": list(hosts)}
    terms = required.get("nodeSelectorTerms") or [{}]
    return all(wanted in (term.get("matchExpressions") or []) for term in terms)


def unstarted(job: KubeJob) -> KubeManifest:
    """Return the patch that resets startTime: only then the Job's nodes can be changed."""
    return {
        "metadata": {"resourceVersion": job.metadata.resource_version},
        "status": {"startTime": None},
    }


def resized(job: KubeJob, pods: int) -> KubeManifest:
    """Return the patch that changes the number of pods of a Job, if it is unchanged."""
    return {
        "metadata": {"resourceVersion": job.metadata.resource_version},
        "spec": widened(job, pods),
    }


def widened(job: KubeJob, pods: int) -> KubeManifest:
    """Return the fields of a Job's spec that set how many pods run at the same time.

    If all pods of a Job run at the same time, each with its index, this stays so. Other Jobs do the
    same work with fewer pods.
    """
    return {"parallelism": pods, **({"completions": pods} if job.gang else {})}


def pods_of_width(config: KubeConfig, order: StartEffect, job: KubeJob) -> int:
    """Return the number of a Job's pods that fit on the GPUs of an attempt."""
    return max(1, order.gpus // max(1, gpus_of_pod(job.spec.template.spec, config.gpu)))


def suspend(job: KubeJob, over: str = "") -> KubeManifest:
    """Return the patch that suspends a Job; `over` records why it ended for good."""
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
    """Return the node affinity restricted to hosts; `again` removes an earlier restriction."""
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
