"""The AsyncAPI 3.0 document, from a table of topics and the schemas of what goes over them."""

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
    """One kind of topic, and what the daemon does with it."""

    name: str
    topic: str
    action: Literal["send", "receive"]
    rule: Rule
    """Who may be at its other end, as tokens have it over HTTP; the broker's ACL is to say so."""
    about: str
    kinds: tuple[Any, ...]
    retain: bool = False
    reply: str = ""
    """The channel of answers."""


POOL = f"{ROOT}/{{cluster}}/pool/{{pool}}"
MANAGER = f"{ROOT}/{{cluster}}/manager"

CHANNELS = (
    Channel(
        "submit", f"{POOL}/submit", "receive", Rule.SUBMIT,
        "Jobs for the pool: one, a list, or as a batch over HTTP. Acknowledged once durable.",
        (schemas.PoolJob, list[schemas.PoolJob], schemas.PoolJobs), reply="reply",
    ),
    Channel(
        "cmd", f"{POOL}/cmd", "receive", Rule.SUBMIT, "Changes of a job of the pool.",
        get_args(schemas.PoolCommand), reply="reply",
    ),
    Channel(
        "reply", f"{POOL}/reply/{{to}}", "send", Rule.SUBMIT,
        "Answers, where a message gave such a topic as its response topic (MQTT 5).",
        (schemas.Reply,),
    ),
    Channel(
        "event", f"{POOL}/event", "send", Rule.VIEW,
        "What happened in the pool: in order, each once or more; `seq` grows. With seq 0: what was "
        "refused, and what was known already.", (EventView,),
    ),
    Channel(
        "poolState", f"{POOL}/state", "send", Rule.VIEW,
        "What the pool has in use, at most once a second.",
        (PoolView,), retain=True,
    ),
    Channel(
        "state", f"{ROOT}/{{cluster}}/state", "send", Rule.VIEW, "Whether the daemon is there.",
        (Literal["online", "offline"],), retain=True,
    ),
    Channel(
        "order", f"{MANAGER}/order", "send", Rule.OPERATE,
        "What an external cluster manager is to do.",
        get_args(schemas.Order),
    ),
    Channel(
        "report", f"{MANAGER}/report", "receive", Rule.OPERATE,
        "What an external cluster manager has seen.",
        get_args(schemas.Report),
    ),
    Channel(
        "managerState", f"{MANAGER}/state", "receive", Rule.OPERATE,
        "The heartbeat of an external cluster manager, and its last will.",
        (schemas.ManagerState,), retain=True,
    ),
)  # fmt: skip
"""All topics; a test holds the daemon to them."""

PARAMETERS = {
    "cluster": "mqtt.cluster of the daemon's configuration.",
    "pool": "The pool's name; % / + # and control characters as %XX.",
    "to": "Anything that the asker chose.",
}


def document(config: MqttConfig | None = None) -> AsyncApiDocument:
    """All topics, as the world describes them; on this broker if one is known."""
    kinds = [kind for channel in CHANNELS for kind in channel.kinds]
    structs = sorted({k for k in kinds if isinstance(k, type)}, key=_named)
    _, found = msgspec.json.schema_components(structs, ref_template=REF)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "SIA",
            "version": __version__,
            "description": "Pools of GPUs that lend to each other what nobody will need. "
            f"QoS 1 throughout; messages to the daemon have {MAX_PAYLOAD:,} bytes at most.",
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
    """A message's name."""
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
