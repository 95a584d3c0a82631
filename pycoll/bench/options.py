"""What `pycoll bench` was asked for."""

from __future__ import annotations

from dataclasses import dataclass

from pycoll import InvalidArgument
from pycoll.bench import workload
from pycoll.bench.lateness import Lateness
from pycoll.probe import State

PEERS = ("gloo", "mpi")
DEFAULT_SIZES = "4B:256MiB:x4"


@dataclass(frozen=True)
class BenchOptions:
    """Sizes are bytes, times seconds. The same on every rank."""

    collectives: tuple[str, ...] = ("allreduce",)
    sizes: tuple[int, ...] = (4, 1024, 2**16, 2**20)
    ranks: int = 2
    dtype: str = "float32"
    op: str = "sum"
    root: int = 0
    algorithms: tuple[str, ...] = ("",)  # "" is the engine's own choice
    pieces: int = 0  # 0 is the algorithm's own number
    in_place: bool = True
    zero_copy: bool = False
    peers: tuple[str, ...] = ()
    iterations: int | None = None  # None: as many as fit in `budget`
    warmup: int | None = None
    blocks: int = 5
    budget: float = 1.0
    state: State | None = None  # accept only blocks measured in this state
    check: bool = True
    seed: int = 0
    timeout: float = 60.0
    latenesses: tuple[Lateness, ...] = ()  # each measured by itself; none: nobody is made late
    lenient: bool = False  # leave out, with a note, algorithms that do not do a collective
    progress: bool = False  # rank 0 shows a bar on stderr

    def __post_init__(self) -> None:
        _require(bool(self.collectives), "name a collective")
        _require(bool(self.sizes), "name a size")
        _require(self.ranks >= 1, f"ranks must be at least 1, not {self.ranks}")
        _require(self.iterations is None or self.iterations >= 1, "iters must be at least 1")
        _require(self.warmup is None or self.warmup >= 0, "warmup must not be negative")
        _require(self.blocks >= 1, "blocks must be at least 1")
        _require(self.budget > 0, "budget must be positive")
        _require(self.timeout > 0, "timeout must be positive")
        _require(self.pieces >= 0, "pieces must not be negative")
        for peer in self.peers:
            _require(peer in PEERS, f"peer {peer!r} is not known; choose among {', '.join(PEERS)}")
        for collective in self.collectives:
            # Says at once what has no meaning, before any process is started.
            workload.Workload(self.case(collective, self.sizes[0]), 0, self.ranks)
        if "gloo" in self.peers:
            _require(
                not self.zero_copy or "mpi" in self.peers,
                "--zero-copy is of pycoll's own face, and --vs gloo runs through torch.distributed: leave "
                "one out",
            )
            _require(
                self.algorithms == ("",) and not self.pieces,
                "--vs gloo runs through torch.distributed, where pycoll chooses the algorithm: leave out "
                "--algorithm "
                "and --pieces",
            )
            _require(
                self.in_place or not set(self.collectives) & {"allreduce", "reduce"},
                "--vs gloo runs through torch.distributed, which has allreduce and reduce in place only: "
                "leave out "
                "--out-of-place",
            )

    def case(self, collective: str, size: int) -> workload.Case:
        return workload.Case(
            collective,
            size,
            self.dtype,
            self.op,
            self.root,
            self.in_place or collective == "broadcast",
            self.seed,
        )


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise InvalidArgument(otherwise)
