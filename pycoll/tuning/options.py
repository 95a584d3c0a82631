"""What `pycoll tune` was asked for."""

from __future__ import annotations

from dataclasses import dataclass

from pycoll import InvalidArgument
from pycoll.bench.options import BenchOptions
from pycoll.selection.profile import Profile

DEFAULT_SIZES = "4B:64MiB:x4"
DEFAULT_COLLECTIVES = ("allreduce",)


@dataclass(frozen=True)
class TuneOptions:
    """Sizes are bytes, `budget` is seconds for everything. The same on every rank."""

    collectives: tuple[str, ...] = DEFAULT_COLLECTIVES
    sizes: tuple[int, ...] = (4, 1024, 2**16, 2**20)
    ranks: int = 2
    dtype: str = "float32"
    budget: float = 60.0
    seed: int = 0
    timeout: float = 60.0
    check: Profile | None = None  # measure against the choices of this one, rather than to make one
    progress: bool = False

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise InvalidArgument("tune: with one rank there is nothing to choose; give --ranks 2 or more")
        if not self.budget > 0:
            raise InvalidArgument("tune: the budget must be a positive number of seconds")
        if "barrier" in self.collectives:
            raise InvalidArgument(
                "tune: a barrier moves nothing that algorithms would differ in; leave it out"
            )
        self.bench()  # checks the rest

    def bench(self) -> BenchOptions:
        return BenchOptions(
            self.collectives, self.sizes, self.ranks, self.dtype, seed=self.seed, timeout=self.timeout
        )
