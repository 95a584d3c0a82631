"""MSCCL algorithm files, read and checked: gpus, their thread blocks, and the steps of those."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import dataclass

from pycoll import _core
from pycoll._core import InvalidArgument, ScheduleError

_COLLECTIVES = {
    "allreduce": "allreduce",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "all_to_all",
}
RECEIVES = {"r", "rcs", "rrs", "rrc", "rrcs"}
SENDS = {"s", "rcs", "rrs", "rrcs"}
STORES = {"r", "rcs", "rrc", "rrcs"}  # receives that keep the result
_TYPES = RECEIVES | SENDS | {"cpy", "re", "nop"}

Place = tuple[str, int]  # buffer, chunk


@dataclass(frozen=True)
class Step:
    where: str
    type: str
    source: Place
    destination: Place
    count: int
    after: tuple[int, int] | None  # thread block and step of the same gpu


@dataclass
class ThreadBlock:
    gpu: int
    send: int
    receive: int
    channel: int
    steps: list[Step]
    done: int = 0


@dataclass(frozen=True)
class File:
    name: str
    collective: str
    pieces: int
    root: int
    in_place: bool
    gpus: list[dict[int, ThreadBlock]]


def parse(text: str, root: int) -> File:
    try:
        algo = ET.fromstring(text)
    except ET.ParseError as error:
        raise ScheduleError(f"not valid XML: {error}") from error
    if algo.tag != "algo":
        raise ScheduleError(f"the document's element is <{algo.tag}>; an MSCCL file's is <algo>")
    name = algo.get("name", "msccl")
    where = f"algo {name!r}"
    kind = algo.get("coll", "")
    if kind not in _COLLECTIVES:
        known = ", ".join(_COLLECTIVES)
        raise ScheduleError(f"{where}: coll={kind!r} is no collective of pycoll's; those are {known}")
    ranks = _integer(algo, "ngpus", where)
    elements = algo.findall("gpu")
    by_id = {_integer(gpu, "id", f"{where}, gpu"): gpu for gpu in elements}
    if len(elements) != ranks or sorted(by_id) != list(range(ranks)):
        raise ScheduleError(f"{where}: needs one <gpu> for each id from 0 to ngpus - 1 = {ranks - 1}")
    chunks = _integer(algo, "nchunksperloop", where, 0)
    for id_, gpu in by_id.items():
        sizes = (_integer(gpu, attribute, f"gpu {id_}", 0) for attribute in ("i_chunks", "o_chunks"))
        chunks = max(chunks, *sizes) if "nchunksperloop" not in algo.attrib else chunks
    collective = _COLLECTIVES[kind]
    pieces = chunks * ranks if collective == "all_to_all" else chunks
    try:
        _core.check_collective(collective, ranks, pieces, root)
    except InvalidArgument as error:
        raise ScheduleError(f"{where}: {error}") from error
    return File(
        name=name,
        collective=collective,
        pieces=pieces,
        root=root,
        in_place=_integer(algo, "inplace", where, 0) != 0,
        gpus=[_parse_gpu(by_id[id_], id_, ranks) for id_ in range(ranks)],
    )


def _parse_gpu(element: ET.Element, gpu: int, ranks: int) -> dict[int, ThreadBlock]:
    blocks: dict[int, ThreadBlock] = {}
    for tb in element.findall("tb"):
        id_ = _integer(tb, "id", f"gpu {gpu}, tb")
        where = f"gpu {gpu}, tb {id_}"
        if id_ in blocks:
            raise ScheduleError(f"{where}: appears twice")
        steps: list[Step] = []
        for step in tb.findall("step"):
            number = _integer(step, "s", f"{where}, step")
            if number != len(steps):
                raise ScheduleError(f"{where}: step {number} stands where step {len(steps)} should")
            steps.append(_parse_step(step, f"{where}, step {number}"))
        block = ThreadBlock(
            gpu=gpu,
            send=_integer(tb, "send", where),
            receive=_integer(tb, "recv", where),
            channel=_integer(tb, "chan", where),
            steps=steps,
        )
        for attribute, peer, users in (("send", block.send, SENDS), ("recv", block.receive, RECEIVES)):
            used = any(step.type in users for step in steps)
            if used and (not 0 <= peer < ranks or peer == gpu):
                raise ScheduleError(f"{where}: {attribute}={peer} is no other gpu, but a step needs it")
        blocks[id_] = block
    for block in blocks.values():
        for parsed in block.steps:
            if parsed.after is not None and (
                parsed.after[0] not in blocks or parsed.after[1] >= len(blocks[parsed.after[0]].steps)
            ):
                raise ScheduleError(
                    f"{parsed.where}: depends on tb {parsed.after[0]}, step {parsed.after[1]}, not there"
                )
    return blocks


def _parse_step(element: ET.Element, where: str) -> Step:
    type_ = element.get("type", "")
    if type_ not in _TYPES:
        raise ScheduleError(
            f"{where}: type={type_!r} has no meaning in a schedule; known are {', '.join(sorted(_TYPES))}"
        )
    where = f"{where} ({type_})"
    block, step = _integer(element, "depid", where, -1), _integer(element, "deps", where, -1)
    count = _integer(element, "cnt", where, 1)
    reads = type_ not in ("nop", "r", "rcs")
    writes = type_ in STORES or type_ in ("cpy", "re")
    places = []
    for side, needed in (("src", reads), ("dst", writes)):
        buffer, offset = element.get(f"{side}buf", "i"), _integer(element, f"{side}off", where, -1)
        if needed and buffer not in ("i", "o", "s"):
            raise ScheduleError(f"{where}: {side}buf={buffer!r} is no buffer; those are i, o and s")
        if needed and offset < 0:
            raise ScheduleError(f"{where}: {side}off={offset} is no chunk")
        places.append((buffer, offset))
    if type_ != "nop" and count < 1:
        raise ScheduleError(f"{where}: cnt={count} must be at least 1")
    return Step(where, type_, places[0], places[1], count, (block, step) if block >= 0 else None)


def _integer(element: ET.Element, attribute: str, where: str, default: int | None = None) -> int:
    text = element.get(attribute)
    if text is None:
        if default is not None:
            return default
        raise ScheduleError(f"{where}: attribute {attribute!r} is missing")
    try:
        number = int(text)
    except ValueError:
        raise ScheduleError(f"{where}: {attribute}={text!r} must be an integer") from None
    if abs(number) >= 2**31:
        raise ScheduleError(f"{where}: {attribute}={text} does not fit 32 bits")
    return number
