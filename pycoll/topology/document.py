"""What a topology file may say, field by field: pydantic models, and the JSON Schema made from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from pycoll.errors import InvalidArgument, TopologyError
from pycoll.topology.patterns import parse_pattern
from pycoll.topology.units import parse_bandwidth, parse_time

__all__ = ["Document", "LinkClass", "LinkGroup", "NodeGroup", "Template", "schema_text"]

VERSION = 1


def _quantity(what: str, parse: Callable[[str], float], example: str) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if not isinstance(value, str):
            raise ValueError(f"a {what} has a unit: write {example}")
        try:
            return parse(value)
        except InvalidArgument as error:
            raise ValueError(str(error)) from error

    return read


def _finite(value: float) -> float:
    if value == float("inf"):
        raise ValueError("a link's bandwidth is finite: write 25 GB/s or 100 Gbit/s")
    return value


def _checked(text: str) -> str:
    try:
        parse_pattern(text)
    except TopologyError as error:
        raise ValueError(str(error)) from error
    return text


_NUMBER = r"\s*[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?\s*"
_RATE_SCHEMA = WithJsonSchema(
    {
        "type": "string",
        "pattern": rf"^\s*unlimited\s*$|^{_NUMBER}([kMGT]|[KMGT]i)?B/s\s*$|^{_NUMBER}[kMGT]?bit/s\s*$",
        "examples": ["100 Gbit/s", "25 GB/s", "12 GiB/s"],
    }
)
_TIME_SCHEMA = WithJsonSchema(
    {
        "type": "string",
        "pattern": rf"^{_NUMBER}(s|ms|us|µs|μs|ns)\s*$",
        "examples": ["1.5 us", "20 ms", "0 s"],
    }
)
Rate = Annotated[
    float, PlainValidator(_quantity("rate", parse_bandwidth, "25 GB/s or 100 Gbit/s")), _RATE_SCHEMA
]
Bandwidth = Annotated[Rate, AfterValidator(_finite)]
Time = Annotated[float, PlainValidator(_quantity("time", parse_time, "1.5 us or 20 ms")), _TIME_SCHEMA]
Names = Annotated[
    str, Field(min_length=1, examples=["h[0-7]", "s[0-3].gpu[i=0-7]"]), AfterValidator(_checked)
]
Source = Annotated[str, Field(description="Where the figures come from.")]


def _one_of(*required: list[str]) -> dict[str, Any]:
    return {"oneOf": [{"required": names} for names in required]}


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=False)


class Intra(_Model):
    """What happens inside a device."""

    copy_rate: Rate = Field(float("inf"), alias="copy", description="Rate of a copy. Default: unlimited.")
    reduce_rate: Rate = Field(
        float("inf"), alias="reduce", description="Rate of adding into a buffer. Default: unlimited."
    )


class NodeGroup(_Model):
    """Equal nodes, or instances of a template."""

    model_config = ConfigDict(json_schema_extra=_one_of(["name"], ["use", "as"]))

    name: Names | None = Field(None, description="Name, with ranges for several: h[0-7].")
    use: str | None = Field(None, description="Name of a template.")
    instances: Names | None = Field(
        None, alias="as", description="Name of the instance, with ranges for several. Its nodes are as.name."
    )
    kind: Literal["device", "switch"] = Field(
        "device", description="Ranks live on devices; switches forward."
    )
    ports: int = Field(
        0, ge=0, description="Transfers that a device sends (and receives) at once; 0, the default: no limit."
    )
    overhead: Time = Field(
        0.0, description="Time that a transfer holds its port beyond its bytes'. Default: 0 s."
    )
    forwards: bool = Field(
        False, description="Whether others' transfers may pass through a device, as through a torus' router."
    )
    intra: Intra | None = Field(None, description="Rates inside a device.")
    source: Source | None = None


class LinkClass(_Model):
    """Figures that many links share. A link may state any of them anew."""

    bandwidth: Bandwidth | None = Field(None, description="Of one direction.")
    latency: Time | None = Field(None, description="From the sender's end to the receiver's.")
    source: Source | None = None


class LinkGroup(_Model):
    """Links of one sort: full duplex, except from/to."""

    model_config = ConfigDict(
        json_schema_extra=_one_of(["between"], ["from", "to"], ["among"], ["ring"], ["chain"])
    )

    between: tuple[Names, Names] | None = Field(
        None, description="Every node of the one with every node of the other; [i=0-7] and [i] pair them off."
    )
    source_nodes: Names | None = Field(None, alias="from", description="Start of links of one direction.")
    target_nodes: Names | None = Field(None, alias="to", description="End of links of one direction.")
    among: Names | None = Field(None, description="Every node with every other one.")
    ring: Names | None = Field(None, description="Every node with the next, and the last with the first.")
    chain: Names | None = Field(None, description="Every node with the next.")
    link_class: str | None = Field(None, alias="class", description="Name of a class of links.")
    bandwidth: Bandwidth | None = Field(None, description="Of one direction.")
    latency: Time | None = Field(None, description="From the sender's end to the receiver's.")
    count: int = Field(1, ge=1, le=1024, description="Parallel links, each of this bandwidth.")
    source: Source | None = None


class Template(_Model):
    """A group of nodes and the links inside it, used as often as wanted."""

    nodes: list[NodeGroup] = Field(min_length=1)
    links: list[LinkGroup] = []


class Document(_Model):
    """A machine for pycoll: devices, switches and links, all figures with units."""

    pycoll: Literal[1] = Field(description="Version of the format.")
    name: str = Field(description="What the machine is called.")
    about: str = Field("", description="What it is, in a sentence or two.")
    source: Source | list[str] | None = None
    classes: dict[str, LinkClass] = Field({}, description="Classes of links, by name.")
    templates: dict[str, Template] = Field({}, description="Groups of nodes and links, by name.")
    nodes: list[NodeGroup] = Field(min_length=1)
    links: list[LinkGroup] = []
    ranks: list[Names] | None = Field(
        None, min_length=1, description="Devices of rank 0, 1, ...; by default all devices in order."
    )


def schema_text() -> str:
    """The JSON Schema of topology files, for editors."""
    schema = _plain(Document.model_json_schema(by_alias=True))
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "pycoll topology"}
    return json.dumps(head | schema, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(schema: Any) -> Any:
    """Without what an editor would only stumble over: null for a field that is left out, titles, defaults."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    options = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
    if len(options) == 1:
        schema = {key: value for key, value in schema.items() if key != "anyOf"} | options[0]
    return {
        key: {name: _plain(each) for name, each in value.items()} if key == "properties" else _plain(value)
        for key, value in schema.items()
        if key not in ("title", "default") and not (key == "anyOf" and len(options) == 1)
    }
