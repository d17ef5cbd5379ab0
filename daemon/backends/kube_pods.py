"""The pods of a Job, as the API server lists them."""

from __future__ import annotations

import msgspec

from daemon.backends.kube_api import Kube, KubeError, KubeExpiredError
from daemon.backends.kube_shapes import Pod


async def pods_of(kube: Kube, namespace: str, uid: str) -> list[Pod]:
    """Those of the Job of that uid, also of one that is gone. Raises KubeError.

    They are asked for by a label, which whoever makes a pod may give it: what says that it is
    another's is left out. What says nothing counts: it is what a Job leaves that was deleted
    without its pods, and these are on GPUs.
    """
    path, found = f"/api/v1/namespaces/{namespace}/pods", list[Pod]()
    try:
        async for page in kube.pages(path, {"labelSelector": f"controller-uid={uid}"}):
            found += [msgspec.json.decode(raw, type=Pod) for raw in page.items]
    except KubeExpiredError as error:
        raise KubeError(str(error)) from None
    except msgspec.MsgspecError as error:
        why = f"of pods the API server says what is not understood: {error}"
        raise KubeError(why[:300], "report it with the version of Kubernetes") from None
    return [pod for pod in found if pod.metadata.owned_by(uid) is not False]
