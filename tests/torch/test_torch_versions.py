"""What torch has renamed, and what it has from some release on: each under every name that this torch has."""

from __future__ import annotations

import time
import warnings
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from pycoll.torch import build

from .gang import Gang

# The same collective, torch's oldest name first. A torch that lacks one of these has one of the others.
GATHERS = ["_all_gather_base", "all_gather_into_tensor", "all_gather_single"]
SCATTERS = ["_reduce_scatter_base", "reduce_scatter_tensor", "reduce_scatter_single"]
METHODS = {  # of ProcessGroup and, from torch 2.14 on, of a Backend
    "gather": ["_allgather_base", "all_gather_single"],
    "scatter": ["_reduce_scatter_base", "reduce_scatter_single"],
    "exchange": ["alltoall_base", "all_to_all_single"],
}
COALESCED = {
    "gather": ["allgather_into_tensor_coalesced", "all_gather_single_coalesced"],
    "scatter": ["reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"],
}


def test_renamed_functions(ranks):
    assert all(hasattr(dist, name) for names in (GATHERS, SCATTERS) for name in names[:2])

    def body():
        warnings.simplefilter("ignore")  # the old names are deprecated
        me, world = dist.get_rank(), dist.get_world_size()
        called = []
        for asynchronous in (False, True):
            for name in [n for n in GATHERS + SCATTERS if hasattr(dist, n)]:
                gathers = "gather" in name
                out = torch.zeros(2 * world if gathers else 2)
                source = torch.arange(2.0 if gathers else 2.0 * world) + 10 * me
                work = getattr(dist, name)(out, source, async_op=asynchronous)
                if asynchronous:
                    work.wait()
                if gathers:
                    expected = [10.0 * r + i for r in range(world) for i in range(2)]
                else:
                    expected = [sum(10.0 * r + 2 * me + i for r in range(world)) for i in range(2)]
                assert out.tolist() == expected, name
                called.append(name)
        return called

    for called in ranks(3, body):
        assert len(called) >= 2 * 4  # two names each, both ways


def test_renamed_methods_of_groups_and_backends(ranks):
    def body():
        me, world = dist.get_rank(), dist.get_world_size()
        cpu = torch.device("cpu")
        gathered = [10.0 * r + i for r in range(world) for i in range(2)]
        scattered = [sum(10.0 * r + 2 * me + i for r in range(world)) for i in range(2)]
        exchanged = [10.0 * r + 2 * me + i for r in range(world) for i in range(2)]
        called = []
        for holder in (dist.group.WORLD, dist.group.WORLD._get_backend(cpu)):
            for what, names in METHODS.items():
                for method in [getattr(holder, name) for name in names if hasattr(holder, name)]:
                    short, long = torch.arange(2.0) + 10 * me, torch.arange(2.0 * world) + 10 * me
                    if what == "gather":
                        out = torch.zeros(2 * world)
                        method(out, short).wait()
                    elif what == "scatter":
                        out = torch.zeros(2)
                        method(out, long, dist.ReduceScatterOptions()).wait()
                    else:
                        out = torch.zeros(2 * world)
                        method(out, long, [2] * world, [2] * world).wait()
                    right = {"gather": gathered, "scatter": scattered, "exchange": exchanged}[what]
                    assert out.tolist() == right, method
                    called.append(method)
            for what, names in COALESCED.items():
                for method in [getattr(holder, name) for name in names if hasattr(holder, name)]:
                    many = 2 * world if what == "gather" else 2
                    few = 2 if what == "gather" else 2 * world
                    outs = [torch.zeros(many) for _ in range(2)]
                    method(outs, [torch.arange(float(few)) + 10 * me + k for k in range(2)]).wait()
                    step = 1 if what == "gather" else world
                    right = gathered if what == "gather" else scattered
                    for k in range(2):
                        assert outs[k].tolist() == [v + k * step for v in right], method
                    called.append(method)
        return len(called)

    for called in ranks(3, body):
        assert called >= 6  # each at least once by the group


def test_gather_single(ranks):
    """From torch 2.14 on."""
    names = [name for name in ("gather_single", "gather_into_tensor") if hasattr(dist, name)]
    if not names:
        pytest.skip(f"torch {torch.__version__} has no gather_single")

    def body():
        warnings.simplefilter("ignore")
        me, world = dist.get_rank(), dist.get_world_size()
        for name in names:
            for asynchronous in (False, True):
                out = torch.empty(3 * world) if me == 1 else None
                work = getattr(dist, name)(torch.full((3,), float(me)), out, dst=1, async_op=asynchronous)
                if asynchronous:
                    work.wait()
                if me == 1:
                    assert out.tolist() == [float(r) for r in range(world) for _ in range(3)]

    ranks(3, body)


def test_split_group_with_its_options(ranks):
    """From torch 2.15 on, on CPU: the backend, the description, the timeout, and splits of splits."""
    if build._torch_release() < (2, 15):
        pytest.skip(f"torch {torch.__version__} has split_group for accelerators only")

    def body():
        me, cpu = dist.get_rank(), torch.device("cpu")
        halves = [[3, 1], [0, 2]]
        mine = next(half for half in halves if me in half)
        part = dist.split_group(
            split_ranks=halves, timeout=timedelta(seconds=1), group_desc="halves", backend="pycoll"
        )
        assert (part.group_desc, dist.get_backend(part)) == ("halves", "pycoll")
        assert part._get_backend(cpu).options._timeout == timedelta(seconds=1)
        assert dist.group.WORLD._get_backend(cpu).options._timeout == timedelta(seconds=20)
        assert [dist.get_rank(part), dist.get_world_size(part)] == [mine.index(me), 2]
        for refused in ("mpi", "cuda:pycoll,cpu:gloo"):
            with pytest.raises(ValueError, match=r"(?i)backend"):
                dist.split_group(split_ranks=halves, backend=refused)
        for bad in ([], [[]], [[0, 0]]):
            with pytest.raises(ValueError, match="split"):
                dist.split_group(split_ranks=bad)

        single = dist.split_group(part, split_ranks=[[1]])  # ranks of the part
        if mine.index(me) == 1:
            t = torch.ones(1)
            dist.all_reduce(t, group=single)
            assert t.item() == 1.0
            dist.destroy_process_group(single)
        else:
            assert single is dist.GroupMember.NON_GROUP_MEMBER

        t = torch.tensor([float(me)])
        dist.all_reduce(t, group=part)
        assert t.item() == sum(mine)
        if mine.index(me) == 1:
            time.sleep(2)  # beyond the part's timeout, not beyond the world's
        else:
            with pytest.raises(dist.DistBackendError, match="timed out"):
                dist.all_reduce(t, group=part)
        t = torch.ones(1)
        dist.all_reduce(t)
        assert t.item() == 4.0

    ranks(4, body, breaks_group=True)


def test_a_world_bound_to_the_cpu(tmp_path):
    """From torch 2.15 on `device_id` may be a CPU; then ranks are told of new groups that they are not in."""
    if build._torch_release() < (2, 15):
        pytest.skip(f"torch {torch.__version__} binds to accelerators only")

    def body(store):
        import os

        me = int(os.environ["RANK"])
        dist.init_process_group(
            "pycoll", store=dist.FileStore(store, 3), rank=me, world_size=3, device_id=torch.device("cpu:0")
        )
        for members in ([0, 2], [1]):
            group = dist.new_group(members)
            if me in members:
                t = torch.tensor([float(me)])
                dist.all_reduce(t, group=group)
                assert t.item() == sum(members)
            else:
                assert group is dist.GroupMember.NON_GROUP_MEMBER
        half = dist.split_group(split_ranks=[[1, 0], [2]])
        t = torch.tensor([float(me)])
        dist.all_reduce(t, group=half)
        assert t.item() == (2.0 if me == 2 else 1.0)
        t = torch.ones(1)
        dist.all_reduce(t)
        assert t.item() == 3.0
        dist.destroy_process_group()

    with Gang(3) as gang:
        gang.call(3, body, str(tmp_path / "store"))


def test_set_timeout_of_torch(ranks):
    """torch 2.14 has a public function for it; before, it serves torch's own backends only."""
    if not hasattr(dist, "set_timeout"):
        pytest.skip(f"torch {torch.__version__} has no set_timeout")

    def body():
        dist.set_timeout(timedelta(seconds=0.5))
        if dist.get_rank() == 1:
            time.sleep(2)
            return
        with pytest.raises(dist.DistBackendError, match="timed out"):
            dist.barrier()

    ranks(2, body, breaks_group=True)


def test_torchs_own_flight_recorder(ranks):
    """From torch 2.15 on it notes every backend's calls, and must not take those that ended for hung."""
    if build._torch_release() < (2, 15):
        pytest.skip(f"torch {torch.__version__} records its own backends only")

    def body():
        import json
        import os

        from torch._C import _distributed_c10d as c10d

        if os.environ.get("TORCH_FR_BUFFER_SIZE") == "0":
            return None
        me = dist.get_rank()
        group = dist.new_group()
        x, y = torch.ones(3), torch.ones(6)
        c10d._reset_fr_trace(backend="pycoll")
        for asynchronous in (False, True):
            for call in (
                lambda a: dist.all_reduce(x, group=group, async_op=a),
                lambda a: dist.all_gather_into_tensor(y, x, group=group, async_op=a),
                lambda a: dist.all_to_all_single(y, y.clone(), [3, 3], [3, 3], group=group, async_op=a),
                lambda a: dist.barrier(group=group, async_op=a),
            ):
                work = call(asynchronous)
                if asynchronous:
                    work.wait()
        (dist.send if me == 0 else dist.recv)(x, 1 - me, group=group)
        entries = json.loads(c10d._dump_fr_trace_json(backend="pycoll"))["entries"]
        return [(entry["profiling_name"].split(":")[1].split(" ")[0], entry["retired"]) for entry in entries]

    for rank, seen in enumerate(ranks(2, body)):
        if seen is None:
            pytest.skip("torch's flight recorder is off")
        names = [name for name, _ in seen]
        assert len(names) == 9, names
        assert names[0] == names[4] == "all_reduce"
        assert names[3] == names[7] == "barrier"
        assert names[8] == ("send" if rank == 0 else "recv")
        assert [retired for _, retired in seen] == [True] * 9, seen
