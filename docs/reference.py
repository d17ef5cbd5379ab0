"""Generate the reference pages from the code when the site is built."""

from __future__ import annotations

import ast
import asyncio
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import click
import msgspec
from aiohttp.test_utils import TestClient, TestServer
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from daemon.config import access, mqtt, read
from daemon.config.config import BACKENDS, Config, NodeConfig, PoolConfig, backend_section
from daemon.config.webhook_kinds import KINDS
from daemon.config.webhooks import _Hook
from daemon.doors.http.metrics.exposition import PrometheusMetrics
from daemon.doors.mqtt.asyncapi import document as asyncapi
from daemon.process.application import make_app
from daemon.process.build import build
from daemon.runtime.logs import begin
from sia.contract.plugins import plugins

SECTIONS: Mapping[str, type[Struct]] = {
    "[daemon]": read._Daemon,  # noqa: SLF001  the section before it is checked
    "[[pool]]": PoolConfig,
    "[[node]]": NodeConfig,
    **{f'[backend] kind = "{kind}"': backend_section(kind) for kind in plugins(BACKENDS)},
    "[mqtt]": mqtt.MqttConfig,
    "[tls]": access.TlsConfig,
    "[limits]": access.LimitsConfig,
    "[[webhook]]": _Hook,
}
"""Tables of `sia.toml`."""

GROUP = "sia.commands"


class Family(NamedTuple):
    """A metric."""

    name: str
    kind: str
    labels: tuple[str, ...]
    about: str


def write(folder: Path) -> None:
    """Write all pages into a folder that holds nothing else."""
    folder.mkdir(exist_ok=True)
    api, metrics = asyncio.run(_asked())
    pages = {
        "cli": _cli(),
        "configuration": _configuration(),
        "metrics": _metrics(metrics),
        "api": _api(api),
        "events": _events(),
        "topics": _topics(),
    }
    for name, lines in pages.items():
        text = "\n".join(lines).rstrip() + "\n"
        page = folder / f"{name}.md"
        if (
            not page.exists() or page.read_text() != text
        ):  # Sphinx rebuilds pages with a newer file time
            page.write_text(text)


def _cli() -> Iterator[str]:
    """Return the page of all commands with their options."""
    yield "# Commands\n"
    yield "`sia COMMAND --help` prints the same text. The exit code is 2 for misuse and 3 if no daemon"
    yield "answers; [The daemon](../operate/daemon.md#commands) lists all exit codes."
    for name, point in plugins(GROUP).items():
        yield from _command(point.load(), f"sia {name}")


def _command(command: click.Command, path: str, level: int = 2) -> Iterator[str]:
    """Return the section of a command and of its subcommands."""
    context = click.Context(command, info_name=path, max_content_width=98)
    yield f"\n{'#' * level} {path}\n\n```text\n{command.get_help(context)}\n```"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _command(below, f"{path} {name}", level + 1)


def _configuration() -> Iterator[str]:
    """Return the page of all keys of `sia.toml`: type, default and meaning."""
    yield "# Configuration\n"
    yield "All keys of `sia.toml`. Times are in seconds, or text such as `5m`. [The daemon](../operate/daemon.md)"
    yield "explains how to use them. `sia serve --check` reports all errors in a file."
    for title, struct in SECTIONS.items():
        said = _said_of(struct) | (_said_of(Config) if title == "[daemon]" else {})
        yield f"\n## {title}\n\n{_first(struct.__doc__)}\n\n| key | type | default | meaning |\n|---|---|---|---|"
        for field in fields(struct):
            about = said.get(field.name, "")
            yield _row(f"`{field.encode_name}`", _type(field), _default(field), about)


def _said_of(struct: type[Struct]) -> dict[str, str]:
    """Return the docstring below each field in the source of a struct."""
    body = ast.parse(textwrap.dedent(inspect.getsource(struct))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(ast.literal_eval(below.value).split())
    return found


def _type(field: FieldInfo) -> str:
    """Return the type of a field as a JSON type, with its bounds."""
    schema = msgspec.json.schema(field.type)
    definitions = schema.pop("$defs", {})
    return _kind(schema, definitions)


def _kind(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return _kind(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        kinds = (_kind(each, definitions) for each in schema["anyOf"])
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind != "null"))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"] if value is not None)
    kind = {"string": "text", "array": "list"}.get(
        schema.get("type", ""), schema.get("type", "any")
    )
    if kind == "list" and isinstance(schema.get("items"), Mapping):
        kind = f"list of {_kind(schema['items'], definitions)}"
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high = schema.get("maximum")
    bounds = [
        *([f"≥ {low:g}"] if low is not None else []),
        *([f"> {above:g}"] if above is not None else []),
        *([f"≤ {high:g}"] if high is not None else []),
    ]
    return " ".join([kind, *bounds[:1], *(["and", bounds[1]] if len(bounds) > 1 else [])])


def _default(field: FieldInfo) -> str:
    if field.default_factory is not NODEFAULT:
        value = field.default_factory()
    elif field.default is NODEFAULT:
        return "**required**"
    else:
        value = field.default
    if value in (None, "", (), {}, []):
        return ""
    return f"`{msgspec.json.encode(value).decode()}`"


def _metrics(families: Iterable[Family]) -> Iterator[str]:
    """Return the page of all metrics."""
    yield "# Metrics\n"
    yield "`GET /metrics` returns these metrics in the text format of Prometheus."
    yield "\n| metric | kind | labels | meaning |\n|---|---|---|---|"
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        yield _row(f"`{family.name}`", family.kind, labels, family.about)


def _api(document: Mapping[str, Any]) -> Iterator[str]:
    """Return the page of all operations, from the OpenAPI document."""
    yield "# HTTP API\n"
    yield f"This page is generated from `GET /v1/openapi.json` (OpenAPI {document['openapi']})."
    yield "[Access](../operate/access.md) says which roles a rule admits. Refusals are"
    yield "`application/problem+json`."
    for path, methods in sorted(document["paths"].items()):
        for method, said in methods.items():
            yield f"\n## {method.upper()} {path}\n"
            yield f"{said['summary']} Rule: `{said['x-sia-rule']}`."
            yield from _parameters(said.get("parameters", []))
            if "requestBody" in said:
                yield f"\nBody: {_content(said['requestBody'])}."
            good = (
                f"{status}: {_content(a)}"
                for status, a in said["responses"].items()
                if status < "4"
            )
            bad = [f"{status}" for status in said["responses"] if status >= "4"]
            yield f"\nResponses: {'; '.join(good)}. Refusals: {', '.join(bad)}."
    yield "\n## Schemas"
    for name, schema in document["components"]["schemas"].items():
        yield from _schema(name, schema)


def _parameters(parameters: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    rows = [
        _row(f"`{each['name']}`", each["in"], each.get("description", "")) for each in parameters
    ]
    if rows:
        yield from ("\n| parameter | in | meaning |\n|---|---|---|", *rows)


def _content(answer: Mapping[str, Any]) -> str:
    """Return the type of a body."""
    kinds = [
        _shown(content["schema"]) if "json" in kind else f"`{kind}`"
        for kind, content in answer.get("content", {}).items()
    ]
    return ", ".join(kinds) or "nothing"


def _shown(schema: Mapping[str, Any]) -> str:
    """Return a type, with a link if it has a name."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for many in ("anyOf", "oneOf"):
        if many in schema:
            return " or ".join(dict.fromkeys(map(_shown, schema[many])))
    if schema.get("type") == "array" and isinstance(schema.get("items"), Mapping):
        return f"list of {_shown(schema['items'])}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"map to {_shown(schema['additionalProperties'])}"
    return _kind(schema, {})


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n### {name}\n\n{_first(schema.get('description', ''))}"
    properties = schema.get("properties", {})
    if not properties:
        yield f"\n{_shown(schema)}"
        return
    yield "\n| field | type | required |\n|---|---|---|"
    for key, kind in properties.items():
        yield _row(f"`{key}`", _shown(kind), "yes" if key in schema.get("required", ()) else "")


def _events() -> Iterator[str]:
    """Return the page of all kinds of events."""
    yield "# Events\n"
    yield "`sia events`, `GET /v1/events`, MQTT topics and [webhooks](../operate/webhooks.md) report these events. An"
    yield "event has `seq`, which increases by one, `time` in seconds since the epoch, its `kind`, and the `job`,"
    yield "`pool` or `node` that it concerns. The content of `data` depends on the kind.\n"
    yield from (f"- `{kind}`" for kind in sorted(KINDS))


def _topics() -> Iterator[str]:
    """Return the page of all topics, from the AsyncAPI document."""
    made = msgspec.json.decode(msgspec.json.encode(asyncapi()))
    yield "# MQTT topics\n"
    yield f"This page is generated from the AsyncAPI {made['asyncapi']} document, which `sia asyncapi` and"
    yield "`GET /v1/asyncapi.json` return. [MQTT](../operate/mqtt.md) explains how to use the topics."
    yield "\n| topic | meaning |\n|---|---|"
    for channel in made["channels"].values():
        about = channel.get("description") or channel.get("summary") or channel.get("title") or ""
        yield _row(f"`{channel['address']}`", about)


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _first(doc: str | None) -> str:
    """Return the first paragraph of a docstring as one line."""
    return " ".join(inspect.cleandoc(doc or "").split("\n\n")[0].split())


async def _asked() -> tuple[dict[str, Any], list[Family]]:
    """Start a daemon and return its OpenAPI document and its metrics."""
    begin("error")
    with TemporaryDirectory() as folder:
        config = msgspec.structs.replace(
            Config.embedded(), database=Path(folder) / "sia.db", models=Path(folder)
        )
        metrics = PrometheusMetrics()
        daemon = build(config, metrics)
        await daemon.service.start()
        try:
            app = make_app(daemon, config, "token", metrics)
            async with TestClient(TestServer(app)) as client:
                headers = {"Authorization": "Bearer token"}
                async with client.get("/v1/openapi.json", headers=headers) as said:
                    return await said.json(), sorted(_families(metrics))
        finally:
            await daemon.service.stop()


def _families(metrics: PrometheusMetrics) -> Iterator[Family]:
    """Return all metrics. prometheus_client has no public name for their labels."""
    for collector in metrics.registry._collector_to_names:  # noqa: SLF001  no public name
        counted = [collector] if hasattr(collector, "_labelnames") else collector.collect()
        for each in counted:
            family = next(iter(each.collect())) if hasattr(each, "collect") else each
            end = "_total" if family.type == "counter" else ""
            about = family.documentation
            yield Family(family.name + end, family.type, tuple(each._labelnames), about)  # noqa: SLF001  no public name
