"""What the backend supports, found out by doing it: the tables of docs/torch.md.

python tests/torch/support.py            # writes them there; test_torch_support.py says when that is due
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "torch.md"
BEGIN, END = (
    "<!-- made by tests/torch/support.py: begin -->\n",
    "<!-- made by tests/torch/support.py: end -->\n",
)


def mine(shape=(3, 2), rank=None):
    count = torch.Size(shape).numel()
    return (torch.arange(float(count)) + 10 * (dist.get_rank() if rank is None else rank)).view(shape)


def everyones(shape=(3, 2)):
    return [mine(shape, rank) for rank in range(dist.get_world_size())]


def equal(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


# Each: (what a user calls, how) -> a function of (asynchronous) that tells whether the result was right.


def finish(work: Any) -> None:
    if work is not None:
        work.wait()


def all_reduce(asynchronous):
    t = mine()
    finish(dist.all_reduce(t, async_op=asynchronous))
    return torch.equal(t, sum(everyones()))


def all_reduce_strided(asynchronous):
    t = mine((2, 3)).t()
    finish(dist.all_reduce(t, async_op=asynchronous))
    return torch.equal(t, sum(everyones((2, 3))).t())


def all_reduce_sparse(asynchronous):
    t = torch.eye(3).to_sparse() * (1 + dist.get_rank())
    finish(dist.all_reduce(t, async_op=asynchronous))
    return torch.equal(t.to_dense(), torch.eye(3) * 3)


def all_reduce_coalesced(asynchronous):
    ts = [mine(), mine((4,))]
    finish(dist.all_reduce_coalesced(ts, async_op=asynchronous))
    return equal(ts, [sum(everyones()), sum(everyones((4,)))])


def broadcast(asynchronous):
    t = mine()
    finish(dist.broadcast(t, 1, async_op=asynchronous))
    return torch.equal(t, mine(rank=1))


def reduce(asynchronous):
    t = mine()
    finish(dist.reduce(t, 1, async_op=asynchronous))
    return dist.get_rank() != 1 or torch.equal(t, sum(everyones()))


def reduce_elsewhere(asynchronous):
    t = mine()
    finish(dist.reduce(t, 1, async_op=asynchronous))
    return dist.get_rank() == 1 or torch.equal(t, mine())


def all_gather(asynchronous):
    outs = [torch.empty(3, 2) for _ in range(dist.get_world_size())]
    finish(dist.all_gather(outs, mine(), async_op=asynchronous))
    return equal(outs, everyones())


def all_gather_uneven(asynchronous):
    outs = [torch.empty(rank + 1) for rank in range(dist.get_world_size())]
    finish(dist.all_gather(outs, mine((dist.get_rank() + 1,)), async_op=asynchronous))
    return equal(outs, [mine((rank + 1,), rank) for rank in range(dist.get_world_size())])


def all_gather_tensor(asynchronous):
    out = torch.empty(3 * dist.get_world_size(), 2)
    finish(dist.all_gather_single(out, mine(), async_op=asynchronous))
    return torch.equal(out, torch.cat(everyones()))


def all_gather_coalesced(asynchronous):
    outs = [[torch.empty(3, 2), torch.empty(4)] for _ in range(dist.get_world_size())]
    finish(dist.all_gather_coalesced(outs, [mine(), mine((4,))], async_op=asynchronous))
    return all(equal(out, [mine(rank=r), mine((4,), r)]) for r, out in enumerate(outs))


def reduce_scatter(asynchronous):
    out = torch.empty(3, 2)
    inputs = [mine() + place for place in range(dist.get_world_size())]
    finish(dist.reduce_scatter(out, inputs, async_op=asynchronous))
    return torch.equal(out, sum(everyones()) + dist.get_rank() * dist.get_world_size())


def reduce_scatter_uneven(asynchronous):
    out = torch.empty(dist.get_rank() + 1)
    inputs = [mine((place + 1,)) for place in range(dist.get_world_size())]
    finish(dist.reduce_scatter(out, inputs, async_op=asynchronous))
    return torch.equal(out, sum(everyones((dist.get_rank() + 1,))))


def reduce_scatter_tensor(asynchronous):
    out = torch.empty(3, 2)
    inputs = torch.cat([mine() + place for place in range(dist.get_world_size())])
    finish(dist.reduce_scatter_single(out, inputs, async_op=asynchronous))
    return torch.equal(out, sum(everyones()) + dist.get_rank() * dist.get_world_size())


def all_to_all(asynchronous):
    outs = [torch.empty(3, 2) for _ in range(dist.get_world_size())]
    finish(dist.all_to_all(outs, [mine() + to for to in range(dist.get_world_size())], async_op=asynchronous))
    return equal(outs, [t + dist.get_rank() for t in everyones()])


def all_to_all_single(asynchronous):
    out = torch.empty(2, 2)
    finish(dist.all_to_all_single(out, mine((2, 2)), async_op=asynchronous))
    return torch.equal(out, torch.stack([t[dist.get_rank()] for t in everyones((2, 2))]))


def all_to_all_splits(asynchronous):
    me = dist.get_rank()  # rank 0 gets nothing, rank 1 two rows from each
    out = torch.empty(4 * me, 2)
    finish(dist.all_to_all_single(out, mine((2, 2)), [2 * me] * 2, [0, 2], async_op=asynchronous))
    return torch.equal(out, torch.cat(everyones((2, 2)))[: 4 * me])


def gather(asynchronous):
    outs = [torch.empty(3, 2) for _ in range(dist.get_world_size())]
    root = dist.get_rank() == 1
    finish(dist.gather(mine(), outs if root else None, dst=1, async_op=asynchronous))
    return not root or equal(outs, everyones())


def scatter(asynchronous):
    out = torch.empty(3, 2)
    inputs = [mine() + to for to in range(dist.get_world_size())] if dist.get_rank() == 1 else None
    finish(dist.scatter(out, inputs, src=1, async_op=asynchronous))
    return torch.equal(out, mine(rank=1) + dist.get_rank())


def barrier(asynchronous):
    finish(dist.barrier(async_op=asynchronous))
    return True


def monitored_barrier(asynchronous):
    dist.monitored_barrier()
    return True


def send_recv(asynchronous):
    out, peer = torch.empty(3, 2), 1 - dist.get_rank()
    if asynchronous:
        works = [dist.isend(mine(), peer, tag=3), dist.irecv(out, peer, tag=3)]
        for work in works:
            work.wait()
    elif peer:
        dist.send(mine(), peer)
        dist.recv(out, peer)
    else:
        dist.recv(out, peer)
        dist.send(mine(), peer)
    return torch.equal(out, mine(rank=peer))


def recv_any(asynchronous):
    out, peer = torch.empty(3, 2), 1 - dist.get_rank()
    work = dist.isend(mine(), peer)
    if asynchronous:
        receive = dist.irecv(out)
        receive.wait()
        source = receive._source_rank()
    else:
        source = dist.recv(out)
    work.wait()
    return source == peer and torch.equal(out, mine(rank=peer))


def batch(asynchronous):
    out, peer = torch.empty(3, 2), 1 - dist.get_rank()
    operations = [dist.P2POp(dist.isend, mine(), peer), dist.P2POp(dist.irecv, out, peer)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return torch.equal(out, mine(rank=peer))


def objects(asynchronous):
    world = dist.get_world_size()
    found = [None] * world
    dist.all_gather_object(found, {"rank": dist.get_rank()})
    one = [dist.get_rank()]
    dist.broadcast_object_list(one, 1)
    return found == [{"rank": rank} for rank in range(world)] and one == [1]


BOTH, SYNC, ASYNC = (False, True), (False,), (True,)
PROBES: list[tuple[str, Callable[[bool], bool], tuple[bool, ...]]] = [
    ("`all_reduce`", all_reduce, BOTH),
    ("`all_reduce` of a transposed tensor", all_reduce_strided, BOTH),
    ("`all_reduce` of a sparse COO tensor (SUM, AVG)", all_reduce_sparse, BOTH),
    ("`all_reduce_coalesced`", all_reduce_coalesced, BOTH),
    ("`broadcast`", broadcast, BOTH),
    ("`reduce`", reduce, BOTH),
    ("`reduce` leaves the other ranks' tensors as they were", reduce_elsewhere, BOTH),
    ("`all_gather`", all_gather, BOTH),
    ("`all_gather`, a size for each rank", all_gather_uneven, BOTH),
    ("`all_gather_single` (`all_gather_into_tensor`)", all_gather_tensor, BOTH),
    ("`all_gather_coalesced`", all_gather_coalesced, BOTH),
    ("`reduce_scatter`", reduce_scatter, BOTH),
    ("`reduce_scatter`, a size for each rank", reduce_scatter_uneven, BOTH),
    ("`reduce_scatter_single` (`reduce_scatter_tensor`)", reduce_scatter_tensor, BOTH),
    ("`all_to_all`", all_to_all, BOTH),
    ("`all_to_all_single`", all_to_all_single, BOTH),
    ("`all_to_all_single` with split sizes, zeros too", all_to_all_splits, BOTH),
    ("`gather`", gather, BOTH),
    ("`scatter`", scatter, BOTH),
    ("`barrier`", barrier, BOTH),
    ("`monitored_barrier`", monitored_barrier, SYNC),
    ("`send`, `recv`, `isend`, `irecv`, with tags", send_recv, BOTH),
    ("`recv`, `irecv` from any rank", recv_any, BOTH),
    ("`batch_isend_irecv`", batch, ASYNC),
    ("`all_gather_object`, `broadcast_object_list`", objects, SYNC),
]

OPERATORS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"]
DTYPES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex128", "complex64",
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool",
]  # fmt: skip


def outcome(probe: Callable[..., bool], *args: Any) -> str:
    try:
        return "yes" if probe(*args) else "no"
    except Exception:
        return "no"


def operations() -> dict[str, dict[bool, str]]:
    return {
        name: {asynchronous: outcome(probe, asynchronous) for asynchronous in forms}
        for name, probe, forms in PROBES
    }


def reduces(operator: str, dtype: torch.dtype) -> bool:
    """On two ranks that hold 1 and 3."""
    t = torch.tensor([1 + 2 * dist.get_rank()]).to(dtype)
    op = dist._make_nccl_premul_sum(2.0) if operator == "PREMUL_SUM" else getattr(dist.ReduceOp, operator)
    dist.all_reduce(t, op)
    expected = dict(zip(OPERATORS, [4, 2, 3, 1, 3, 1, 3, 2, 8], strict=True))[operator]
    if dtype == torch.bool and operator == "BXOR":
        expected = 0
    return t.to(torch.complex128).item() == torch.tensor(expected).to(dtype).to(torch.complex128).item()


def reductions() -> dict[str, dict[str, str]]:
    return {
        name: {operator: outcome(reduces, operator, getattr(torch, name)) for operator in OPERATORS}
        for name in DTYPES
    }


def _answers() -> tuple[dict[str, dict[bool, str]], dict[str, dict[str, str]]]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that torch has renamed
        return operations(), reductions()


def on_all(answers: Iterable[str]) -> str:
    return "yes" if all(answer == "yes" for answer in answers) else "no"


def tables() -> str:
    """In Markdown. Makes groups of two processes, one of pycoll and one of gloo."""
    try:
        from .gang import Gang
    except ImportError:
        from gang import Gang

    found = {}
    for backend in ("pycoll", "gloo"):
        with Gang(2, backend) as gang:
            found[backend] = gang.run(2, _answers, limit=120)
    lines = ["| | pycoll | pycoll, async | gloo | gloo, async |", "|---|---|---|---|---|"]
    for name, _, forms in PROBES:
        cells = [
            on_all(answers[0][name][form] for answers in found[backend]) if form in forms else ""
            for backend in ("pycoll", "gloo")
            for form in BOTH
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", f"| `all_reduce` | {' | '.join(OPERATORS)} |", "|---" * (len(OPERATORS) + 1) + "|"]
    dtypes_of: dict[str, list[str]] = {}  # by a row's text
    for name in DTYPES:
        cells = []
        for operator in OPERATORS:
            ours, gloos = (
                on_all(answers[1][name][operator] for answers in found[backend])
                for backend in ("pycoll", "gloo")
            )
            cells.append(
                {("yes", "no"): "yes, gloo not", ("no", "yes"): "no, gloo does"}.get((ours, gloos), ours)
            )
        dtypes_of.setdefault(" | ".join(cells), []).append(name)
    lines += [f"| {', '.join(names)} | {row} |" for row, names in dtypes_of.items()]
    return "\n".join(lines) + "\n"


def documented() -> str:
    text = DOCUMENT.read_text()
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)]


if __name__ == "__main__":
    text = DOCUMENT.read_text()
    DOCUMENT.write_text(text.replace(BEGIN + documented() + END, BEGIN + tables() + END))
