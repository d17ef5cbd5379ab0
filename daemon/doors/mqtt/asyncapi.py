"""Generate the AsyncAPI 3.0 document from a table of channels and the message structs."""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from daemon.config.mqtt import MqttConfig
from daemon.config.mqtt_limits import MAX_PAYLOAD
from daemon.doors.mqtt import schemas
from daemon.doors.mqtt.topics import ROOT
from daemon.model.access import Rule
from daemon.wire.jobs import EventView, PoolView
from sia import __version__

AsyncApiDocument = dict[str, Any]

REF = "#/components/schemas/{name}"

TEXT = "text/plain"


class Channel(NamedTuple):
    """A kind of topic, and whether the daemon sends or receives on it."""

    name: str
    topic: str
    action: Literal["send", "receive"]
    rule: Rule
    """Permission of the other side, as over HTTP. The broker's ACL must enforce it."""
    about: str
    kinds: tuple[Any, ...]
    retain: bool = False
    reply: str = ""
    """Name of the channel for replies."""


POOL = f"{ROOT}/{{cluster}}/pool/{{pool}}"
MANAGER = f"{ROOT}/{{cluster}}/manager"

CHANNELS = (
    Channel(
        "submit", f"{POOL}/submit", "receive", Rule.SUBMIT,
        "Jobs to submit: one, a list, or a batch as over HTTP. Acknowledged once durable.",
        (schemas.PoolJob, list[schemas.PoolJob], schemas.PoolJobs), reply="reply",
    ),
    Channel(
        "cmd", f"{POOL}/cmd", "receive", Rule.SUBMIT, "Commands for a job of the pool.",
        get_args(schemas.PoolCommand), reply="reply",
    ),
    Channel(
        "progress", f"{POOL}/progress", "receive", Rule.REPORT,
        "Reports of running jobs of the pool. The broker can let jobs write here and nowhere else.",
        (schemas.JobProgress,), reply="reply",
    ),
    Channel(
        "reply", f"{POOL}/reply/{{to}}", "send", Rule.SUBMIT,
        "Replies, sent if the message has a response topic of this form (MQTT 5).",
        (schemas.Reply,),
    ),
    Channel(
        "event", f"{POOL}/event", "send", Rule.VIEW,
        "Events of the pool, in order, at least once; `seq` grows. With seq 0: refused messages, "
        "and submissions that were known already.", (EventView,),
    ),
    Channel(
        "poolState", f"{POOL}/state", "send", Rule.VIEW,
        "Usage of the pool, at most once a second.",
        (PoolView,), retain=True,
    ),
    Channel(
        "state", f"{ROOT}/{{cluster}}/state", "send", Rule.VIEW, "Whether the daemon is online.",
        (Literal["online", "offline"],), retain=True,
    ),
    Channel(
        "order", f"{MANAGER}/order", "send", Rule.OPERATE,
        "Orders to an external cluster manager.",
        get_args(schemas.Order),
    ),
    Channel(
        "report", f"{MANAGER}/report", "receive", Rule.OPERATE,
        "Reports of an external cluster manager.",
        get_args(schemas.Report),
    ),
    Channel(
        "managerState", f"{MANAGER}/state", "receive", Rule.OPERATE,
        "Heartbeat and last will of an external cluster manager.",
        (schemas.ManagerState,), retain=True,
    ),
)  # fmt: skip
"""All channels; a test compares the daemon's topics with this table."""

PARAMETERS = {
    "cluster": "mqtt.cluster of the daemon's configuration.",
    "pool": "Name of the pool; % / + # and control characters as %XX.",
    "to": "Any name chosen by the requester.",
}


def document(config: MqttConfig | None = None) -> AsyncApiDocument:
    """Return the AsyncAPI document, with the broker's address if one is configured."""
    kinds = [kind for channel in CHANNELS for kind in channel.kinds]
    structs = sorted({k for k in kinds if isinstance(k, type)}, key=_named)
    _, found = msgspec.json.schema_components(structs, ref_template=REF)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "SIA",
            "version": __version__,
            "description": "Scheduler for pools of GPUs that lend idle GPUs to each other. "
            f"All messages use QoS 1; messages to the daemon have at most {MAX_PAYLOAD:,} bytes.",
        },
        "defaultContentType": "application/json",
        "servers": _servers(config),
        "channels": {channel.name: _channel(channel) for channel in CHANNELS},
        "operations": {f"{c.action}_{c.name}": _operation(c) for c in CHANNELS},
        "components": {
            "schemas": found,
            "messages": {_named(k): _message(k, c) for c in CHANNELS for k in c.kinds},
        },
    }


def _servers(config: MqttConfig | None) -> AsyncApiDocument:
    if config is None:
        return {}
    kind = "secure-mqtt" if config.tls else "mqtt"
    return {"broker": {"host": config.where, "protocol": kind, "protocolVersion": config.protocol}}


def _named(kind: Any) -> str:
    """Return the name of a message type."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind.__name__
    return "PoolJobList" if kind == list[schemas.PoolJob] else "Presence"


def _channel(channel: Channel) -> AsyncApiDocument:
    names = re.findall(r"\{(\w+)\}", channel.topic)
    return {
        "address": channel.topic,
        "description": channel.about,
        "parameters": {name: {"description": PARAMETERS[name]} for name in names},
        "messages": {
            _named(kind): {"$ref": f"#/components/messages/{_named(kind)}"}
            for kind in channel.kinds
        },
    }


def _operation(channel: Channel) -> AsyncApiDocument:
    made: AsyncApiDocument = {
        "action": channel.action,
        "channel": {"$ref": f"#/channels/{channel.name}"},
        "summary": channel.about,
        "x-sia-rule": channel.rule.value,
        "bindings": {
            "mqtt": {"qos": 1, "retain": channel.retain, "bindingVersion": "0.2.0"},
        },
    }
    if channel.reply:
        made["reply"] = {"channel": {"$ref": f"#/channels/{channel.reply}"}}
    return made


def _message(kind: Any, channel: Channel) -> AsyncApiDocument:
    (payload,), _ = msgspec.json.schema_components([kind], ref_template=REF)
    made: AsyncApiDocument = {"name": _named(kind), "payload": payload}
    if channel.name == "state":
        made["contentType"] = TEXT
    if channel.reply:
        made["bindings"] = {
            "mqtt": {
                "responseTopic": {"type": "string"},
                "correlationData": {"type": "string"},
                "bindingVersion": "0.2.0",
            }
        }
    return made
