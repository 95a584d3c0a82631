"""Import of MSCCL algorithm files."""

from __future__ import annotations

from pathlib import Path

import pytest

import pycoll

# A step is "type source destination", a place being buffer and chunk: "rrc i2 o0"; then maybe "x2" (cnt) and
# "@1.0" (depends on thread block 1, step 0). A thread block is (send, recv, channel, steps).
Block = tuple[int, int, int, list[str]]


def xml(
    gpus: list[list[Block]], coll: str = "allreduce", chunks: int | None = 1, **attributes: object
) -> str:
    head: dict[str, object] = {"name": "test", "ngpus": len(gpus), "coll": coll, "inplace": 1}
    if chunks is not None:
        head["nchunksperloop"] = chunks
    head.update(attributes)
    lines = ["<algo " + " ".join(f'{key}="{value}"' for key, value in head.items()) + ">"]
    for gpu, blocks in enumerate(gpus):
        lines.append(f'<gpu id="{gpu}" i_chunks="{chunks or 2}" o_chunks="0" s_chunks="4">')
        for block, (send, recv, channel, steps) in enumerate(blocks):
            lines.append(f'<tb id="{block}" send="{send}" recv="{recv}" chan="{channel}">')
            lines += [step(number, text) for number, text in enumerate(steps)]
            lines.append("</tb>")
        lines.append("</gpu>")
    return "\n".join([*lines, "</algo>"])


def step(number: int, text: str) -> str:
    kind, *places = text.split()
    count, after = "1", ("-1", "-1")
    if places and places[-1].startswith("@"):
        block, dependency = places.pop()[1:].split(".")
        after = (block, dependency)
    if places and places[-1].startswith("x"):
        count = places.pop()[1:]
    source, destination = [*places, "i-1", "i-1"][:2]
    return (
        f'<step s="{number}" type="{kind}" srcbuf="{source[0]}" srcoff="{source[1:]}" '
        f'dstbuf="{destination[0]}" dstoff="{destination[1:]}" cnt="{count}" '
        f'depid="{after[0]}" deps="{after[1]}" hasdep="0"/>'
    )


def load(text: str, root: int = 0) -> pycoll.Schedule:
    return pycoll.Schedule.from_msccl_xml(text, root=root)


def rows(schedule: pycoll.Schedule) -> list[tuple[int, int, int, int, bool]]:
    return schedule.transfers.tolist()


def ring(ranks: int) -> str:
    """The ring of the MSCCL tools: one thread block a gpu, fused steps."""
    gpus: list[list[Block]] = []
    for rank in range(ranks):
        blocks = [(rank - 1 - s) % ranks for s in range(ranks)]  # what it handles, in order, reducing
        steps = [f"s i{blocks[0]} i{blocks[0]}"]
        steps += [f"rrs i{b} i{b}" for b in blocks[1:-1]]
        steps += [f"rrcs i{blocks[-1]} i{blocks[-1]}"]
        steps += [f"rcs i{b} i{b}" for b in blocks[:-2]]
        steps += [f"r i{blocks[-2]} i{blocks[-2]}"]
        gpus.append([((rank + 1) % ranks, (rank - 1) % ranks, 0, steps)])
    return xml(gpus, chunks=ranks)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_ring_is_the_built_in_ring(ranks: int) -> None:
    schedule = load(ring(ranks))
    assert schedule == pycoll.build("ring", ranks=ranks)
    assert schedule.algorithm == "test"


def test_exchange() -> None:
    blocks = [[(1 - rank, 1 - rank, 0, ["s i0 i0 x2", "rrc i0 i0 x2"])] for rank in range(2)]
    assert load(xml(blocks, chunks=2)) == pycoll.build("recursive_doubling", ranks=2, pieces=2)
    assert load(xml(blocks, chunks=None)).pieces == 2  # from i_chunks and o_chunks


def test_scratch_and_local_reduce_are_the_direct_algorithm() -> None:
    """All pairs: everyone receives the others' values in scratch, then adds them up."""
    ranks = 4
    gpus: list[list[Block]] = []
    for rank in range(ranks):
        peers = [peer for peer in range(ranks) if peer != rank]
        blocks: list[Block] = [(peer, peer, 0, ["s i0 s0", f"r i0 s{k}"]) for k, peer in enumerate(peers)]
        adding = [f"re s{k} i0 @{k}.1" for k in range(ranks - 1)]
        gpus.append([*blocks, (-1, -1, 0, adding)])
    assert load(xml(gpus)) == pycoll.build("direct", ranks=ranks)


def test_scratch_values_added_to_each_other_first() -> None:
    gpus: list[list[Block]] = [
        [(-1, 1, 0, ["r i0 s0"]), (-1, 2, 0, ["r i0 s1", "re s1 s0 @0.0", "re s0 i0"])],
        [(0, -1, 0, ["s i0 s0"])],
        [(0, -1, 0, ["s i0 s1"])],
    ]
    assert load(xml(gpus, coll="reduce")) == pycoll.build("direct", collective="reduce", ranks=3)


def test_a_relay_through_scratch_is_two_copies() -> None:
    gpus: list[list[Block]] = [
        [(1, -1, 0, ["s i0 s0"])],
        [(2, 0, 0, ["rcs i0 s0", "nop", "cpy s0 i0"])],
        [(-1, 1, 0, ["r i0 i0"])],
    ]
    assert rows(load(xml(gpus, coll="broadcast"))) == [(0, 0, 1, 0, False), (1, 1, 2, 0, False)]


def test_broadcast_root_is_an_argument() -> None:
    gpus: list[list[Block]] = [[(-1, 1, 0, ["r i0 i0"])], [(0, -1, 0, ["s i0 i0"])]]
    assert load(xml(gpus, coll="broadcast"), root=1).root == 1
    with pytest.raises(pycoll.ScheduleError, match=r"i\[0\], which holds nothing"):
        load(xml(gpus, coll="broadcast"))


@pytest.mark.parametrize("in_place", [0, 1])
def test_all_gather(in_place: int) -> None:
    gpus: list[list[Block]] = []
    for rank in range(2):
        own = [] if in_place else [(-1, -1, 0, [f"cpy i0 o{rank}"])]
        gpus.append([(1 - rank, 1 - rank, 0, [f"s i0 o{rank}", f"r i0 o{1 - rank}"]), *own])
    schedule = load(xml(gpus, coll="allgather", chunks=2, inplace=in_place))
    assert schedule == pycoll.build("direct", collective="all_gather", ranks=2)


@pytest.mark.parametrize("in_place", [0, 1])
def test_reduce_scatter(in_place: int) -> None:
    gpus: list[list[Block]] = [
        [(1 - rank, 1 - rank, 0, [f"s i{1 - rank} i{1 - rank}", f"rrc i{rank} o0"])] for rank in range(2)
    ]
    schedule = load(xml(gpus, coll="reduce_scatter", chunks=2, inplace=in_place))
    assert schedule == pycoll.build("direct", collective="reduce_scatter", ranks=2)


def test_all_to_all() -> None:
    gpus: list[list[Block]] = []
    for rank in range(3):
        blocks: list[Block] = [
            (peer, peer, 0, [f"s i{peer} o{rank}", f"r i0 o{peer}"]) for peer in range(3) if peer != rank
        ]
        gpus.append([*blocks, (-1, -1, 0, [f"cpy i{rank} o{rank}"])])
    schedule = load(xml(gpus, coll="alltoall", chunks=3, inplace=0))
    assert schedule == pycoll.build("direct", collective="all_to_all", ranks=3)


def test_out_of_place_reads_the_input_while_the_output_is_made() -> None:
    """The send has no dependency on the receive: it must not be taken to send the sum."""
    gpus: list[list[Block]] = [
        [(-1, 1 - rank, 0, ["rrc i0 o0"]), (1 - rank, -1, 0, ["s i0 o0"])] for rank in range(2)
    ]
    assert load(xml(gpus, inplace=0)) == pycoll.build("direct", ranks=2)


def test_load_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ring.xml"
    path.write_text(ring(3))
    assert pycoll.Schedule.load(path) == pycoll.build("ring", ranks=3)
    path.write_text("<algo>")
    with pytest.raises(pycoll.ScheduleError, match=r"ring\.xml: not valid XML"):
        pycoll.Schedule.load(path)


# ---- what does not map, or is malformed


EXCHANGE: list[list[Block]] = [[(1 - rank, 1 - rank, 0, ["s i0 i0", "rrc i0 i0"])] for rank in range(2)]


def with_steps(*steps: list[str], send: int = 1, recv: int = 1) -> str:
    """Gpu 0 does these; gpu 1 what an exchange needs."""
    return xml([[(send, recv, 0, list(block)) for block in steps], EXCHANGE[1]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid XML"),
        ("<gpu/>", "the document's element is <gpu>"),
        (xml(EXCHANGE, coll="custom"), "coll='custom' is no collective of pycoll's; those are allreduce, "),
        (xml(EXCHANGE, ngpus=3), "needs one <gpu> for each id from 0 to ngpus - 1 = 2"),
        (xml(EXCHANGE, ngpus="x"), "algo 'test': ngpus='x' must be an integer"),
        (xml(EXCHANGE, nchunksperloop=0), "pieces must be between"),
        (xml(EXCHANGE, coll="allgather"), "pieces must be a multiple of 2, not 1"),
        (xml(EXCHANGE).replace('id="1" i_', 'id="0" i_'), "needs one <gpu> for each id"),
        (xml(EXCHANGE).replace('<tb id="0"', "<tb"), "gpu 0, tb: attribute 'id' is missing"),
        (xml(EXCHANGE).replace(' s="1"', ' s="2"'), "gpu 0, tb 0: step 2 stands where step 1 should"),
        (
            xml([[EXCHANGE[0][0]] * 2, EXCHANGE[1]]).replace('<tb id="1"', '<tb id="0"'),
            "gpu 0, tb 0: appears twice",
        ),
        (
            with_steps(["ld i0 i0"]),
            "gpu 0, tb 0, step 0: type='ld' has no meaning in a schedule; known are cpy,",
        ),
        (with_steps(["s i0 i0", "rrc q0 i0"]), "step 1 .rrc.: srcbuf='q' is no buffer; those are i, o and s"),
        (with_steps(["s i0 i0", "rrc i-1 i0"]), "step 1 .rrc.: srcoff=-1 is no chunk"),
        (with_steps(["s i0 i0 x0"]), "step 0 .s.: cnt=0 must be at least 1"),
        (with_steps(["s i0 i0 @3.0"]), "step 0 .s.: depends on tb 3, step 0, not there"),
        (with_steps(["s i0 i0 @0.9"]), "step 0 .s.: depends on tb 0, step 9, not there"),
        (with_steps(["s i0 i0"], send=-1), "gpu 0, tb 0: send=-1 is no other gpu, but a step needs it"),
        (with_steps(["s i0 i0"], send=0), "gpu 0, tb 0: send=0 is no other gpu"),
        (with_steps(["r i0 i0"], recv=7), "gpu 0, tb 0: recv=7 is no other gpu"),
        (with_steps(["rrc i0 i0", "s i0 i0 @0.1"]), "gpu 0, tb 0, step 1 .s.: can never run"),
        (with_steps(["s i0 i0", "rrc i0 i0", "r i0 s0"]), "gpu 0, tb 0, step 2 .r.: can never run"),
        (
            with_steps(["s i0 i0", "rrc i0 i0", "s i0 s0"]),
            "gpu 1 never receives what gpu 0 sends it last on channel 0",
        ),
        (with_steps(["s i0 i0", "rrc i0 i0 x2"]), "step 1 .rrc.: cnt=2, but gpu 1 sends 1"),
        (with_steps(["s s0 i0"]), "step 0 .s.: reads chunk s.0., which holds nothing"),
        (
            with_steps(["s i0 i0", "r i0 s0", "cpy i0 s1", "re s1 i0"]),
            "adds the gpu's own value of piece 0 to itself",
        ),
        (
            with_steps(["cpy i0 s0", "s i0 i0", "rrc i0 i0", "cpy s0 i0"]),
            "at the end, output chunk 0: uses a value of piece 0 that gpu 0 has since received or added to; "
            "in a schedule a rank has one value of a piece, so this does not map",
        ),
        (
            with_steps(["s i0 i0", "r i0 i0"]),
            "rank 1 does not hold the piece complete|reduce of piece 0|copy of piece 0",
        ),
        (
            xml([[(1, 1, 0, ["s i0 i0", "r i0 i1"])], [(0, 0, 0, ["s i0 i0", "r i0 i1"])]], chunks=2),
            "gpu 0, at the end, output chunk 1: holds piece 0; it should hold piece 1",
        ),
        (
            xml([[(1, 1, 0, ["s i0 i0", "rrc i1 i1"])], [(0, 0, 0, ["s i0 i0", "rrc i1 i1"])]], chunks=2),
            "gpu 0, tb 0, step 1 .rrc.: adds piece 0 to piece 1",
        ),
        (
            xml(
                [
                    [(-1, 1, 0, ["r i0 s0"]), (1, 2, 0, ["r i0 s1", "re s1 s0 @0.0", "s s0 i0"])],
                    [(0, 0, 0, ["s i0 s0", "r i0 i0"])],
                    [(0, -1, 0, ["s i0 s1"])],
                ],
                coll="reduce",
            ),
            "step 2 .s.: uses a sum of received values of piece 0 that the gpu's own is not part of",
        ),
    ],
)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(pycoll.ScheduleError, match=message):
        load(text)


def test_messages_that_outlive_what_they_were_copied_from() -> None:
    """Gpus 0 and 1 send each other their values, overwrite their own, and only then add what was sent."""
    gpus: list[list[Block]] = [
        [
            (1 - rank, 1 - rank, 0, ["s i0 s0", "r i0 s0"]),
            (2, 2, 1, ["r i0 i0", "s i0 s0"]),
            (-1, -1, 0, ["nop @0.1", "re s0 i0 @1.1"]),
        ]
        for rank in range(2)
    ]
    gpus.append([(0, 0, 1, ["s i0 i0", "r i0 s0"]), (1, 1, 1, ["s i0 i0", "r i0 s1"])])
    with pytest.raises(pycoll.ScheduleError, match=r"piece 0 .* in a circle; .* so this does not map"):
        load(xml(gpus))
