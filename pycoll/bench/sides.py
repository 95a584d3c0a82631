"""The libraries that are measured, each called as its users call it."""

from __future__ import annotations

import os
import socket
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import pycoll
from pycoll import Unsupported, _network
from pycoll.bench import buffers
from pycoll.bench.buffers import Buffers
from pycoll.bench.workload import Workload

Call = Callable[[], object]


class Side(Protocol):
    """One library through one interface, with one choice of algorithm: a line of the table."""

    library: str  # "pycoll", "gloo", "mpi"
    interface: str  # "numpy", "torch": only sides of one interface are compared
    algorithm: str  # as asked for; "" where the library chooses
    keeps_inputs: bool  # whether it promises to leave inputs that are not outputs as they were

    def allocate(self, size: int) -> buffers.Bytes: ...

    def bind(self, workload: Workload, memory: Buffers) -> Call:
        """The call to be timed. Raises Unsupported where the library has no such collective, dtype or op."""

    def chosen(self, workload: Workload) -> str:
        """The algorithm that runs; "" where the library does not say."""


@dataclass
class NativeSide:
    """pycoll's own face, on NumPy arrays."""

    comm: pycoll.Communicator
    algorithm: str = ""
    pieces: int = 0
    zero_copy: bool = False
    library: str = "pycoll"
    interface: str = "numpy"
    keeps_inputs: bool = True

    def allocate(self, size: int) -> buffers.Bytes:
        if not self.zero_copy:
            return buffers.private_bytes(size)
        memory: buffers.Bytes = self.comm.empty((size,), np.uint8)
        return memory

    def chosen(self, workload: Workload) -> str:
        case = workload.case
        return self.algorithm or str(
            self.comm.chosen_algorithm(
                case.collective,
                workload.count,
                dtype=case.dtype,
                op=case.op if case.takes_op else "sum",
                root=case.root,
            )
        )

    def bind(self, workload: Workload, memory: Buffers) -> Call:
        comm, case = self.comm, workload.case
        x = buffers.as_array(memory.input, case.dtype)
        y = buffers.as_array(memory.output, case.dtype)
        how: dict[str, Any] = {}
        if self.algorithm:
            how["algorithm"] = self.algorithm
        if self.pieces:
            how["pieces"] = self.pieces
        out = {} if workload.input_is_output and case.collective in ("allreduce", "reduce") else {"out": y}
        op, root = case.op, case.root
        gets_output, gives_input = workload.output_length is not None, workload.input_length is not None
        calls: dict[str, Call] = {
            "allreduce": lambda: comm.allreduce(x, op, **out, **how),
            "broadcast": lambda: comm.broadcast(x, root, **how),
            "reduce": lambda: comm.reduce(x, op, root, **(out if gets_output else {}), **how),
            "reduce_scatter": lambda: comm.reduce_scatter(x, op, out=y, **how),
            "all_gather": lambda: comm.all_gather(x, out=y, **how),
            "gather": lambda: comm.gather(x, root, out=y if gets_output else None, **how),
            "scatter": lambda: comm.scatter(x if gives_input else None, root, out=y, **how),
            "all_to_all": lambda: comm.all_to_all(x, out=y, **how),
            "barrier": lambda: comm.barrier(algorithm=self.algorithm or None),
        }
        return calls[case.collective]


@dataclass
class TorchSide:
    """A process group of torch.distributed, on tensors."""

    group: Any
    library: str
    algorithm: str = ""
    interface: str = "torch"
    keeps_inputs: bool = True

    def allocate(self, size: int) -> buffers.Bytes:
        return buffers.private_bytes(size)

    def chosen(self, workload: Workload) -> str:
        return ""

    def bind(self, workload: Workload, memory: Buffers) -> Call:
        import torch.distributed as dist

        case, group, ranks = workload.case, self.group, workload.ranks
        x = buffers.as_tensor(memory.input, case.dtype)
        y = buffers.as_tensor(memory.output, case.dtype)
        op = getattr(dist.ReduceOp, {"prod": "PRODUCT"}.get(case.op, case.op.upper()))
        if self.library == "gloo" and case.takes_op and case.op == "avg":
            raise Unsupported("gloo has no avg")
        # torch 2.14 has new names for these two.
        all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        outputs = list(y.chunk(ranks)) if case.collective == "gather" and workload.output_length else None
        inputs = list(x.chunk(ranks)) if case.collective == "scatter" and workload.input_length else None
        calls: dict[str, Call] = {
            "allreduce": lambda: dist.all_reduce(x, op, group=group),
            "broadcast": lambda: dist.broadcast(x, case.root, group=group),
            "reduce": lambda: dist.reduce(x, case.root, op, group=group),
            "reduce_scatter": lambda: reduce_scatter(y, x, op=op, group=group),
            "all_gather": lambda: all_gather(y, x, group=group),
            "gather": lambda: dist.gather(x, outputs, case.root, group=group),
            "scatter": lambda: dist.scatter(y, inputs, case.root, group=group),
            "all_to_all": lambda: dist.all_to_all_single(y, x, group=group),
            "barrier": lambda: dist.barrier(group=group),
        }
        return calls[case.collective]


def torch_sides(comm: pycoll.Communicator) -> tuple[TorchSide, TorchSide]:
    """pycoll and gloo as two process groups over the same processes."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    address = _store_address(comm)
    store = None
    port = np.zeros(1, np.int64)
    if comm.rank == 0:
        store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
        port[0] = store.port
    comm.broadcast(port, 0)
    if store is None:
        store = TCPStore(address, int(port[0]), is_master=False)
    dist.init_process_group("gloo", store=store, rank=comm.rank, world_size=comm.ranks)
    own = TorchSide(dist.new_group(backend="pycoll"), "pycoll")
    # gloo's reduce uses the other ranks' tensors as scratch.
    return own, TorchSide(dist.group.WORLD, "gloo", keeps_inputs=False)


def _store_address(comm: pycoll.Communicator) -> str:
    """Rank 0's address: loopback where all ranks are on one host, on which gloo then stays too."""
    here = f"{socket.gethostname()} {os.readlink('/proc/self/ns/net')}"
    hosts = comm.all_gather(np.array([zlib.crc32(here.encode())]))
    if (hosts == hosts[0]).all():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        return "127.0.0.1"
    told = np.zeros(64, np.uint8)
    if comm.rank == 0:
        address = _network.own_address().encode()
        told[: len(address)] = np.frombuffer(address, np.uint8)
    comm.broadcast(told, 0)
    return told.tobytes().rstrip(b"\0").decode()


def leave_torch() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


class MpiSide:
    """MPI_COMM_WORLD through mpi4py, on NumPy arrays."""

    library, interface, algorithm, keeps_inputs = "mpi", "numpy", "", True

    def __init__(self) -> None:
        from pycoll.bench import mpi_job

        self.mpi = mpi_job.mpi()

    def allocate(self, size: int) -> buffers.Bytes:
        return buffers.private_bytes(size)

    def chosen(self, workload: Workload) -> str:
        return ""

    def bind(self, workload: Workload, memory: Buffers) -> Call:
        mpi, case, comm = self.mpi, workload.case, self.mpi.COMM_WORLD
        names = {
            "float32": "FLOAT",
            "float64": "DOUBLE",
            "bool": "C_BOOL",
            "complex64": "C_FLOAT_COMPLEX",
            "complex128": "C_DOUBLE_COMPLEX",
        }
        for bits in (8, 16, 32, 64):
            names[f"int{bits}"], names[f"uint{bits}"] = f"INT{bits}_T", f"UINT{bits}_T"
        if case.dtype not in names:
            raise Unsupported(f"MPI has no {case.dtype}")
        if case.takes_op and case.op == "avg":
            raise Unsupported("MPI has no avg")
        kind = getattr(mpi, names[case.dtype])
        ops = {"sum": "LOR", "max": "LOR", "prod": "LAND", "min": "LAND"} if case.dtype == "bool" else {}
        op = getattr(mpi, ops.get(case.op, case.op.upper()))
        aliased = workload.input_is_output
        if aliased and case.collective == "reduce_scatter":
            raise Unsupported("MPI puts an in-place reduce_scatter's result elsewhere, at the buffer's start")
        x: Any = [memory.input, kind]
        y: Any = [memory.output, kind]
        source = mpi.IN_PLACE if aliased else x
        at_root = workload.rank == case.root
        calls: dict[str, Call] = {
            "allreduce": lambda: comm.Allreduce(source, y, op),
            "broadcast": lambda: comm.Bcast(x, case.root),
            "reduce": lambda: comm.Reduce(source if at_root else x, y if at_root else None, op, case.root),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(x, y, op),
            "all_gather": lambda: comm.Allgather(source, y),
            "gather": lambda: comm.Gather(x, y if at_root else None, case.root),
            "scatter": lambda: comm.Scatter(x if at_root else None, y, case.root),
            "all_to_all": lambda: comm.Alltoall(x, y),
            "barrier": lambda: comm.Barrier(),
        }
        return calls[case.collective]
