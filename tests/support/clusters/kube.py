"""An emulated Kubernetes: kmock stores the objects; this module adds what the daemon needs of an
API server and its controllers: resource versions and conflicts, watches that resume and break off,
rights, and Jobs whose pods are placed, run and end."""

import asyncio
import json
from bisect import bisect_right
from collections import Counter, defaultdict
from contextlib import asynccontextmanager
from copy import deepcopy
from datetime import UTC, datetime
from uuid import uuid4

import kmock
from aiohttp import web
from kmock import KubernetesEmulator, ResourceInfo

GPU = "nvidia.com/gpu"
HOST = "kubernetes.io/hostname"
LISTED = {
    "jobs": ("batch/v1/jobs", "Job"),
    "pods": ("v1/pods", "Pod"),
    "nodes": ("v1/nodes", "Node"),
    "leases": ("coordination.k8s.io/v1/leases", "Lease"),
    "clusterqueues": ("kueue.x-k8s.io/v1beta1/clusterqueues", "ClusterQueue"),
    "workloads": ("kueue.x-k8s.io/v1beta1/workloads", "Workload"),
}
LOG = 100_000


def failure(status, reason="", message="", **headers):
    body = {"kind": "Status", "status": "Failure", "code": status, "reason": reason}
    names = {key.replace("_", "-"): value for key, value in headers.items()}
    return web.json_response({**body, "message": message}, status=status, headers=names)


class Cluster(KubernetesEmulator):
    """An API server with the controllers of Jobs and nodes.

    `verbs` counts requests; `forbidden` holds each (verb, resource) that is not allowed; `trouble`
    is called for each request and may answer it; `slow` lists Jobs that end only when a test ends
    them; `ran` counts started containers by Job; pods of a Job in `lingers` that are ended hold
    their GPUs until the test calls `leave`.
    """

    def __init__(self, namespaces=("vision", "speech", "sia")):
        super().__init__()
        self.namespaces = set(namespaces)
        self.verbs, self.forbidden, self.requests_seen = Counter(), set(), []
        self.trouble = lambda verb, request: None
        self.version, self.oldest = 100, 0
        self.events, self.wake = [], asyncio.Event()
        self.watches = {}
        self.index = defaultdict(dict)  # kmock's objects, by kind
        self.ran, self.places = Counter(), defaultdict(list)
        self.ends = {}  # exit codes other than 0, by Job
        self.logs = {}  # output by Job or pod
        self.slow, self.lingers = set(), set()
        self.runs_for = 0.0
        self.twice = False  # whether watches send each event twice
        for name, kind in LISTED.values():
            self.resources[name] = ResourceInfo(kind=kind, namespaced=kind != "Node")

    # --- objects ---------------------------------------------------------------------------------

    def all(self, kind):
        """Return the objects; callers must not modify them, as a change needs a new version."""
        return list(self.index[kind].values())

    def get(self, kind, name, namespace=...):
        if namespace is not ...:
            return self.index[kind].get((namespace, name))
        return next((obj for (_, key), obj in self.index[kind].items() if key == name), None)

    def _object(self, kind, meta):
        return self.objects[LISTED[kind][0], meta.get("namespace"), meta["name"]]

    def make(self, kind, body, namespace=None):
        """Create an object, as a person or a controller does."""
        meta = body.setdefault("metadata", {})
        if namespace:
            meta["namespace"] = namespace
        self._born(meta)
        self.objects[LISTED[kind][0], meta.get("namespace"), meta["name"]] = body
        self._event(kind, "ADDED", body)
        return body

    def change(self, kind, meta, patch):
        """Change an object, as a person or a controller does."""
        found = self._object(kind, meta)
        found.patch({**patch, "metadata": {**patch.get("metadata", {}), **self._next()}})
        self._event(kind, "MODIFIED", found.raw)

    def remove(self, kind, meta):
        """Delete an object."""
        found = self._object(kind, meta)
        raw = {**found.raw, "metadata": {**found.raw["metadata"], **self._next()}}
        found.delete()
        self._event(kind, "DELETED", raw)

    def _born(self, meta):
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        meta |= {"uid": str(uuid4()), "creationTimestamp": now, **self._next()}

    def _next(self):
        self.version += 1
        return {"resourceVersion": str(self.version)}

    def _event(self, kind, word, raw):
        key = raw["metadata"].get("namespace"), raw["metadata"]["name"]
        self.index[kind].pop(key, None)
        if word != "DELETED":
            self.index[kind][key] = raw
        self.events.append((self.version, kind, {"type": word, "object": raw}))
        self.wake.set()
        self.wake = asyncio.Event()

    def forget(self):
        """Expire all events up to now: a watch cannot resume from them."""
        self.oldest = self.version
        self.events.clear()

    def drop_watches(self):
        """Break off all watches."""
        for each in list(self.watches.values()):
            if each.transport is not None:  # the client may have gone already
                each.transport.abort()

    # --- requests ------------------------------------------------------------------------------

    async def _handle(self, request):
        if request.resource is None or request.resource.plural is None:
            return await super()._handle(request)
        kind, verb = request.resource.plural, _verb(request)
        named = f"{kind}/{request.subresource}" if request.subresource else kind
        self.verbs[verb, named] += 1
        self.requests_seen.append((verb, named, request))
        if (verb, named) in self.forbidden:
            where = f'in the namespace "{request.namespace}"' if request.namespace else ""
            words = f'{named} is forbidden: User "sia" cannot {verb} resource "{kind}" {where}'
            return failure(403, "Forbidden", words)
        answer = self.trouble(verb, request)
        if asyncio.iscoroutine(answer):
            answer = await answer
        return answer or await self._answer(kind, verb, request)

    async def _answer(self, kind, verb, request):
        if verb == "list":
            return self._listed(kind, request)
        if verb == "watch":
            return await self._watched(kind, request)
        if request.subresource == "log":
            return self._logged(request)
        if verb == "get":
            found = self.get(kind, request.name, request.namespace)
            return web.json_response(found) if found else failure(404, "NotFound", "not found")
        return self._written(kind, verb, request)

    def _chosen(self, kind, request):
        wanted = dict(
            each.split("=") for each in request.params.get("labelSelector", "").split(",") if each
        )
        for each in self.all(kind):
            meta = each["metadata"]
            inside = request.namespace in (None, meta.get("namespace"))
            if inside and wanted.items() <= (meta.get("labels") or {}).items():
                yield each

    def _listed(self, kind, request):
        found = sorted(self._chosen(kind, request), key=lambda each: each["metadata"]["name"])
        first, limit = int(request.params.get("continue", 0)), int(request.params.get("limit", 0))
        rest = found[first : first + limit] if limit else found
        more = {"continue": str(first + limit)} if limit and first + limit < len(found) else {}
        meta = {"resourceVersion": str(self.version), **more}
        return web.json_response({"kind": "List", "metadata": meta, "items": rest})

    async def _watched(self, kind, request):
        seen = int(request.params["resourceVersion"])
        if seen < self.oldest:
            return failure(410, "Expired", "too old resource version")
        raw = request._raw_request
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(raw)
        self.watches[id(raw)] = raw
        try:
            while True:
                wake, said = self.wake, False
                for _, about, event in self._since(seen):
                    inside = event["object"]["metadata"].get("namespace") == request.namespace
                    if about == kind and (inside or request.namespace is None):
                        line = json.dumps(event).encode() + b"\n"
                        await answer.write(line * (2 if self.twice else 1))
                        said = True
                seen = max(seen, self.events[-1][0] if self.events else seen)
                if not said:
                    mark = {
                        "type": "BOOKMARK",
                        "object": {"metadata": {"resourceVersion": str(seen)}},
                    }
                    await answer.write(json.dumps(mark).encode() + b"\n")
                await wake.wait()
        except (ConnectionError, asyncio.CancelledError):
            return answer
        finally:
            self.watches.pop(id(raw), None)

    def _since(self, seen):
        first = bisect_right(self.events, seen, key=lambda each: each[0])
        return self.events[first:]

    def _logged(self, request):
        """Return a log as a kubelet does: all of it or the last lines, up to a number of bytes."""
        pod = self.get("pods", request.name, request.namespace)
        if pod is None:
            return failure(404, "NotFound", "not found")
        if pod["status"]["phase"] == "Pending":
            return failure(400, "BadRequest", "container is waiting to start: ContainerCreating")
        assert request.params["container"] in {e["name"] for e in pod["spec"]["containers"]}
        said = self.logs.get(
            request.name, self.logs.get(pod["metadata"]["labels"]["job-name"], b"")
        )
        if lines := int(request.params.get("tailLines", 0)):
            said = b"".join(said.splitlines(keepends=True)[-lines:])
        return web.Response(body=said[: int(request.params["limitBytes"])])

    def _written(self, kind, verb, request):
        if request.namespace is not None and request.namespace not in self.namespaces:
            return failure(404, "NotFound", f'namespaces "{request.namespace}" not found')
        if verb == "create":
            body = request.data
            if self.get(kind, body["metadata"]["name"], request.namespace):
                return failure(409, "AlreadyExists", "already exists")
            return web.json_response(self.make(kind, body, request.namespace), status=201)
        there = self.get(kind, request.name, request.namespace)
        if there is None:
            return failure(404, "NotFound", f'{kind} "{request.name}" not found')
        if verb == "delete":
            return self._deleted(kind, there, request.data or {})
        return self._patched(kind, there, request)

    def _deleted(self, kind, there, options):
        meta = there["metadata"]
        if options.get("preconditions", {}).get("uid", meta["uid"]) != meta["uid"]:
            return failure(409, "Conflict", "the UID in the precondition does not match")
        if kind == "jobs" and options.get("propagationPolicy") == "Foreground":
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            marks = {"deletionTimestamp": now, "finalizers": ["foregroundDeletion"]}
            self.change(kind, meta, {"metadata": marks})
        else:
            self.remove(kind, meta)
        return web.json_response(there)

    def _patched(self, kind, there, request):
        patch, meta = request.data, there["metadata"]
        if isinstance(patch, list):
            steps = [each for each in patch if each["path"] != "/metadata/resourceVersion"]
            tests = [each["value"] for each in patch if each not in steps]
            if any(value != meta["resourceVersion"] for value in tests):
                return failure(422, "Invalid", "the server rejected our request: test failed")
            found = self._object(kind, meta)
            found.patch(steps)
            found.patch({"metadata": self._next()})
            self._event(kind, "MODIFIED", found.raw)
            return web.json_response(found.raw)
        version = patch.get("metadata", {}).get("resourceVersion", meta["resourceVersion"])
        if version != meta["resourceVersion"]:
            return failure(409, "Conflict", "the object has been modified")
        wrong = _wrong(there, patch, request.subresource) if kind == "jobs" else ""
        if wrong:
            return failure(422, "Invalid", wrong)
        if request.subresource != "status":
            patch = {key: value for key, value in patch.items() if key != "status"}
        self.change(kind, meta, patch)
        return web.json_response(self._object(kind, meta).raw)

    # --- controllers ---------------------------------------------------------------------------

    async def live(self):
        """Create pods of Jobs, place pods on nodes, and run them."""
        while True:
            wake = self.wake
            self.step()
            if wake is self.wake:
                await wake.wait()
            await asyncio.sleep(0.002)  # handle several changes in one pass

    def step(self):
        pods = defaultdict(list)
        for pod in self.all("pods"):
            pods[pod["metadata"]["labels"]["controller-uid"]].append(pod)
        jobs = {job["metadata"]["uid"]: job for job in self.all("jobs")}
        for uid, some in pods.items():
            if uid not in jobs:
                self._end_pods(some)
        for uid, job in jobs.items():
            self._job(job, pods[uid])
        self._schedule()
        self._kubelets()

    def _job(self, job, pods):
        meta, spec, status = job["metadata"], job["spec"], job.get("status", {})
        if meta.get("deletionTimestamp"):
            self._end_pods(pods)
            if not pods:
                self.remove("jobs", meta)
            return
        if any(c["type"] in ("Complete", "Failed") for c in status.get("conditions", [])):
            return
        active = [pod for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]
        now = dict(status)
        good = sum(pod["status"]["phase"] == "Succeeded" for pod in pods)
        bad = sum(pod["status"]["phase"] == "Failed" for pod in pods)
        wanted = spec.get("completions") or (1 if good else spec.get("parallelism", 1))
        if spec.get("suspend"):
            self._end_pods(active)
            now["active"] = now["ready"] = 0
            if good >= wanted:
                now |= {"succeeded": good, "conditions": [_condition("Complete")]}
        else:
            now.setdefault("startTime", "2026-01-01T00:00:00Z")
            if bad > spec.get("backoffLimit", 6):
                words = "Job has reached the specified backoff limit"
                now["conditions"] = [_condition("Failed", "BackoffLimitExceeded", words)]
                self._end_pods(active)
            elif good >= wanted:
                now["conditions"] = [_condition("Complete")]
            else:
                many = min(spec.get("parallelism", 1), wanted - good)
                alive = [pod for pod in active if not pod["metadata"].get("deletionTimestamp")]
                for _ in range(many - len(active)):
                    self._new_pod(job)
                self._end_pods(alive[many:])
            ready = sum(pod["status"]["phase"] == "Running" for pod in active)
            now |= {"active": len(active), "ready": ready, "succeeded": good, "failed": bad}
        if now != status:
            self.change("jobs", meta, {"status": now})

    def _new_pod(self, job):
        meta, template = job["metadata"], deepcopy(job["spec"]["template"])
        labels = {"controller-uid": meta["uid"], "job-name": meta["name"]}
        body = {
            "metadata": {
                "name": f"{meta['name']}-{uuid4().hex[:5]}",
                "labels": labels,
                "ownerReferences": [{"kind": "Job", "uid": meta["uid"], "controller": True}],
            },
            "spec": template["spec"],
            "status": {"phase": "Pending"},
        }
        self.make("pods", body, meta["namespace"])

    def _end_pods(self, pods):
        for pod in pods:
            meta = pod["metadata"]
            if meta["labels"]["job-name"] not in self.lingers:
                self.remove("pods", meta)
            elif not meta.get("deletionTimestamp"):
                self.change(
                    "pods", meta, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
                )

    def leave(self, name):
        """Let the pods of a Job that have been ended be gone."""
        self.lingers.discard(name)
        self._end_pods(
            [pod for pod in self.all("pods")
             if pod["metadata"]["labels"]["job-name"] == name
             and pod["metadata"].get("deletionTimestamp")]
        )  # fmt: skip

    def used(self):
        """Return the number of GPUs in use by node."""
        used = Counter()
        for pod in self.all("pods"):
            if pod["spec"].get("nodeName") and pod["status"]["phase"] in ("Pending", "Running"):
                used[pod["spec"]["nodeName"]] += _asks(pod)
        return used

    def _schedule(self):
        used, nodes = self.used(), self.all("nodes")
        for pod in self.all("pods"):
            if pod["spec"].get("nodeName") or pod["status"]["phase"] != "Pending":
                continue
            for node in nodes:
                name = node["metadata"]["name"]
                room = int(node["status"]["allocatable"].get(GPU, 0)) - used[name]
                if _fits(pod["spec"], node) and room >= _asks(pod):
                    used[name] += _asks(pod)
                    self.change("pods", pod["metadata"], {"spec": {"nodeName": name}})
                    break

    def _kubelets(self):
        ready = {node["metadata"]["name"] for node in self.all("nodes") if _ready(node)}
        for pod in self.all("pods"):
            node, meta = pod["spec"].get("nodeName"), pod["metadata"]
            name = meta["labels"]["job-name"]
            if node not in ready:
                continue
            if pod["status"]["phase"] == "Pending":
                self.ran[name] += 1
                self.places[name].append(node)
                self.change("pods", meta, {"status": {"phase": "Running"}})
                if name not in self.slow and self.runs_for is not None:
                    loop = asyncio.get_running_loop()
                    loop.call_later(self.runs_for, self.finish, name)

    def finish(self, name, code=None, **more):
        """End the running pods of a Job with this exit code, or with the one set for the Job."""
        code = self.ends.get(name, 0) if code is None else code
        for pod in self.all("pods"):
            mine = pod["metadata"]["labels"]["job-name"] == name
            if mine and pod["status"]["phase"] == "Running":
                ended = {"terminated": {"exitCode": code, "reason": "Completed", **more}}
                phase = "Failed" if code else "Succeeded"
                status = {"phase": phase, "containerStatuses": [{"state": ended}]}
                self.change("pods", pod["metadata"], {"status": status})

    def lose(self, node):
        """Delete a node and its pods, as PodGC does."""
        self.remove("nodes", self.get("nodes", node)["metadata"])
        for pod in self.all("pods"):
            if pod["spec"].get("nodeName") == node and pod["status"]["phase"] == "Running":
                why = {**_condition("DisruptionTarget", "DeletionByPodGC", f"node {node} is gone")}
                status = {"phase": "Failed", "conditions": [why]}
                self.change("pods", pod["metadata"], {"status": status})


def _verb(request):
    if request.params.get("watch") == "true":
        return "watch"
    if request.method.value == "GET":
        return "get" if request.name else "list"
    return {"POST": "create", "PATCH": "patch", "DELETE": "delete", "PUT": "update"}[
        request.method.value
    ]


def _wrong(there, patch, subresource):
    """Return the error of a real API server for a change that it refuses, else ""."""
    before, spec = there["spec"], patch.get("spec", {})
    template = spec.get("template", {}).get("spec", {})
    started = there.get("status", {}).get("startTime")
    changed = {
        key: value
        for key, value in template.items()
        if before["template"]["spec"].get(key) != value
    }
    if subresource == "status":
        return "" if before.get("suspend") else "cannot reset startTime of a Job that runs"
    if changed and (not before.get("suspend") or started):
        return f"spec.template: field is immutable: {sorted(changed)}"
    if "completions" in spec and (
        before.get("completionMode") != "Indexed"
        or spec["completions"] != spec.get("parallelism", before.get("parallelism"))
    ):
        return "spec.completions: field is immutable"
    if set(changed) - {"nodeSelector", "affinity", "tolerations", "schedulingGates"}:
        return f"spec.template: field is immutable: {sorted(changed)}"
    return ""


def _condition(kind, reason="", message=""):
    return {"type": kind, "status": "True", "reason": reason, "message": message}


def _asks(pod):
    return sum(int(each["resources"]["limits"].get(GPU, 0)) for each in pod["spec"]["containers"])


def _ready(node):
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"]["conditions"])


def _fits(spec, node):
    labels = node["metadata"]["labels"]
    if not (spec.get("nodeSelector") or {}).items() <= labels.items():
        return False
    tolerated = {each["key"] for each in spec.get("tolerations") or []}
    if node["spec"].get("unschedulable") or not _ready(node):
        return False
    if any(each["key"] not in tolerated for each in node["spec"].get("taints", [])):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = required["nodeSelectorTerms"] if required else [{}]
    return any(
        all(labels.get(e["key"]) in e["values"] for e in term.get("matchExpressions", []))
        for term in terms
    )


def node(name, gpus=8, **labels):
    return {
        "metadata": {"name": name, "labels": {HOST: name, **labels}},
        "spec": {"taints": [{"key": GPU, "value": "present", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {GPU: str(gpus), "cpu": "64"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def job(name, gpus=1, pods=1, *, labels=None, notes=None, template=None, **spec):
    """Return a suspended Job as a user writes it."""
    limits = {"limits": {GPU: str(gpus)}}
    pod = {"containers": [{"name": "main", "image": "x", "resources": limits}]}
    return {
        "metadata": {"name": name, "labels": labels or {}, "annotations": notes or {}},
        "spec": {
            "suspend": True, "parallelism": pods, "completions": pods,
            "template": {"spec": {"restartPolicy": "Never", **pod, **(template or {})}}, **spec,
        },
    }  # fmt: skip


@asynccontextmanager
async def cluster(nodes=("n1", "n2"), gpus=8, **more):
    """Run an emulated server; yield it and the text of a kubeconfig."""
    it = Cluster(**more)
    for name in nodes:
        it.make("nodes", node(name, gpus))
    async with it, kmock.Server(it) as server:
        living = asyncio.create_task(it.live())
        it.address = str(server.url).rstrip("/")
        try:
            yield it
        finally:
            living.cancel()
            await asyncio.gather(living, return_exceptions=True)


def kubeconfig(folder, address):
    """Write a kubeconfig for a server."""
    body = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": address}}],
        "users": [{"name": "u", "user": {"token": "t0"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    path = folder / "kubeconfig"
    path.write_text(json.dumps(body))
    return path
