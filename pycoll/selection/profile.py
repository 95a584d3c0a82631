"""Profiles: what `pycoll tune` measured on a machine, and the decisions that follow from it.

A profile is for one machine and one number of ranks. The one at `default_path(ranks)` is used without being
asked for; `pycoll.init(profile=...)` or PYCOLL_PROFILE names another, and PYCOLL_PROFILE=none uses none.

Profiles of GPUs (`pycoll tune --device cuda`) are for the GPUs of a group, `pycoll.gpu.machine.GpuMachine`;
`pycoll.cuda.Group(profile=...)` or PYCOLL_CUDA_PROFILE names one. Neither sort is ever used for the other.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

from pycoll.errors import InvalidArgument
from pycoll.gpu.machine import GpuMachine
from pycoll.selection.decisions import (
    DISTANCES,
    DTYPE_CLASSES,
    FAST_PATH,
    Decision,
    DecisionTable,
    dtype_class,
)

VARIABLE = "PYCOLL_PROFILE"
CUDA_VARIABLE = "PYCOLL_CUDA_PROFILE"
_VERSION = 1
#: A way must beat the fast path by this share of its time to replace it, and by more where few rounds were
#: measured: the quickest of twenty ways is so by luck, too.
MARGIN, MARGIN_OF_ONE_ROUND = 0.02, 0.15
#: Ways up to so many times the best one's time are worth trying when the best turns out slow.
WORTH_TRYING = 4.0


@dataclass(frozen=True)
class Machine:
    """What must be the same for a measurement to mean anything."""

    cpu: str
    cpus: int  #: that processes may use
    quota: float | None  #: processors' worth of time that the control group allows
    kernels: str  #: the vector kernels in use

    @classmethod
    def here(cls) -> Machine:
        from pycoll import _core
        from pycoll.bench import environment

        return cls(
            environment.cpu_model(), environment.usable_cpus(), environment.cpu_quota(), _core.kernel_name()
        )

    @property
    def processors(self) -> int:
        """How many ranks can run at once."""
        return self.cpus if self.quota is None else max(1, min(self.cpus, int(self.quota)))

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits that differ between machines."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:12]

    def __str__(self) -> str:
        quota = "" if self.quota is None else f", quota {self.quota:g}"
        return f"{self.cpu}, {self.cpus} cpus{quota}, {self.kernels}"


@dataclass(frozen=True)
class Timing:
    """How long one way takes for one size: seconds of the slowest rank, medians over rounds."""

    collective: str
    bytes: int
    dtype: str
    way: str
    seconds: float
    relative: float  #: median over rounds of the time / the reference's in the same round
    rounds: int
    #: seven rounds of ten had a smaller ratio to the reference than this; 0 where it is not known
    mostly: float = 0.0
    #: (seconds, relative) by the machine's state: near, far, unknown; of rounds that were in one throughout
    by_state: dict[str, tuple[float, float]] = field(default_factory=dict)
    reference: str = FAST_PATH  #: the way that would run if nothing had been measured

    @property
    def key(self) -> tuple[str, int, str, str]:
        """What was measured."""
        return self.collective, self.bytes, self.dtype, self.way

    @property
    def margin(self) -> float:
        """By what share of this time another way's must be less for it to be quicker beyond doubt."""
        return MARGIN + MARGIN_OF_ONE_ROUND / math.sqrt(max(self.rounds, 1))

    def seconds_in(self, state: str) -> float:
        return self.by_state[state][0] if state in self.by_state else self.seconds

    def relative_in(self, state: str) -> float:
        return self.by_state[state][1] if state in self.by_state else self.relative


@dataclass(frozen=True)
class Profile:
    """What was measured, on which machine, for how many ranks."""

    machine: Machine | GpuMachine
    ranks: int
    timings: tuple[Timing, ...]
    version: str = ""  #: of pycoll
    made: str = ""  #: when
    topology: str = ""  #: fingerprint of the topology it belongs to, where there is one
    wiring: str = ""  #: of GPUs: the topology file that says how they are joined, where that is known

    @classmethod
    def of_here(cls, ranks: int, timings: Iterable[Timing]) -> Profile:
        return cls.of(Machine.here(), ranks, timings)

    @classmethod
    def of(
        cls, machine: Machine | GpuMachine, ranks: int, timings: Iterable[Timing], wiring: str = ""
    ) -> Profile:
        """A profile made now, by this version."""
        from pycoll import __version__

        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return cls(machine, ranks, tuple(timings), __version__, now, wiring=wiring)

    @property
    def device(self) -> str:
        """ "cpu" or "cuda": whose times these are."""
        return "cuda" if isinstance(self.machine, GpuMachine) else "cpu"

    # Files

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Profile:
        """Raises InvalidArgument that names file and field for what is no profile."""
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidArgument(f"{path}: cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise InvalidArgument(f"{path}: is no profile of pycoll tune: {error}") from None
        return cls.of_dict(document, str(path))

    @classmethod
    def of_dict(cls, document: dict[str, Any], path: str) -> Profile:
        """The profile that `to_dict` made; ``path`` is what errors call it."""
        try:
            if document["pycoll_profile"] != _VERSION:
                raise InvalidArgument(
                    f"{path}: a profile of version {document['pycoll_profile']}, and this pycoll reads "
                    f"version {_VERSION}: run pycoll tune again"
                )
            timings = tuple(_timing(row) for row in document["timings"])
            plain = {name: document[name] for name in ("ranks", "version", "made", "topology")}
            device = document.get("device", "cpu")
            if device not in ("cpu", "cuda"):
                raise InvalidArgument(f"{path}: device is {device!r}: it must be cpu or cuda")
            machine = (GpuMachine if device == "cuda" else Machine)(**document["machine"])
            return cls(machine=machine, timings=timings, wiring=document.get("wiring", ""), **plain)
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, InvalidArgument):
                raise
            raise InvalidArgument(f"{path}: is no profile of pycoll tune: {error}") from None

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the file whole or not at all: a job that starts meanwhile reads the old or the new one."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.{os.getpid()}.part")
        part.write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")
        part.replace(target)

    def to_dict(self) -> dict[str, Any]:
        return {
            "pycoll_profile": _VERSION,
            **{name: getattr(self, name) for name in ("made", "version", "device", "ranks", "topology")},
            **({"wiring": self.wiring} if self.wiring else {}),
            "machine": asdict(self.machine),
            "timings": [asdict(timing) for timing in self.timings],
        }

    def require_here(self, ranks: int, name: str) -> None:
        """Raises InvalidArgument, naming both sides, unless it was made on this machine for so many ranks."""
        self.require(Machine.here(), ranks, name)

    def require(self, here: Machine | GpuMachine, ranks: int, name: str) -> None:
        """The same for a machine that is named: of processors, or of GPUs."""
        gpus = isinstance(here, GpuMachine)
        tune = "pycoll tune --device cuda" if gpus else "pycoll tune"
        if gpus != (self.device == "cuda"):
            whose = ("processors", "GPUs") if gpus else ("GPUs", "processors")
            raise InvalidArgument(
                f"the profile {name} is of {whose[0]} ({self.machine}), and this group's ranks use "
                f"{whose[1]}: {VARIABLE} names a profile of processors, {CUDA_VARIABLE} one of GPUs; {tune} "
                "makes one"
            )
        if self.machine != here:
            raise InvalidArgument(
                f"the profile {name} was made on another machine ({self.machine}), and this is {here}: run "
                f"{tune} here"
            )
        if self.ranks != ranks:
            raise InvalidArgument(
                f"the profile {name} is for {self.ranks} ranks, and this group has {ranks}: run {tune} "
                f"--ranks {ranks}"
            )

    # What follows from it

    def merged_with(self, newer: Profile) -> Profile:
        """Both profiles' timings. Of what both measured the newer one's, and the older one's of states of the
        machine that the newer one did not meet: measuring again completes a profile."""
        news = {timing.key: timing for timing in newer.timings}
        met: dict[tuple[str, int, str], set[str]] = {}
        for timing in newer.timings:
            met.setdefault(timing.key[:3], set()).update(timing.by_state)
        kept = []
        for old in self.timings:
            states = met.get(old.key[:3])
            if states is None:
                kept.append(old)
                continue
            unmet = {state: pair for state, pair in old.by_state.items() if state not in states}
            if old.key in news:
                now = news[old.key]
                news[old.key] = replace(now, by_state={**unmet, **now.by_state})
            elif unmet:
                kept.append(replace(old, by_state=unmet))
        timings = (*kept, *news.values())
        return replace(newer, timings=timings)

    def sizes_of(self, collective: str, dtypes: str = "") -> list[int]:
        return sorted({t.bytes for t in self._of(collective, dtypes)})

    def at(self, collective: str, size: int, dtypes: str = "", state: str = "") -> list[Timing]:
        """What was measured at a size, the best first: the reference (of processors the fast path), unless
        another is clearly quicker.

        With `state`, by what was measured in that state of the machine, if anything was; without, by how far
        a way was behind the best one in the state that suits it least.
        """
        rows = [t for t in self._of(collective, dtypes) if t.bytes == size]
        if any(state in t.by_state for t in rows):
            rows = [t for t in rows if state in t.by_state]
        states = [state] if state else sorted({each for t in rows for each in t.by_state})
        best = {s: min((t.relative_in(s) for t in rows if s in t.by_state), default=1.0) for s in states}

        def behind(t: Timing) -> float:
            if state or not states:
                lag = t.relative_in(state)
            else:  # a way without a time in a state left the race there
                lag = max(t.relative_in(s) / best[s] if s in t.by_state else math.inf for s in states)
            if t.way == t.reference:
                return lag * (1 - t.margin)
            # Where ranks share processors the kernel decides in some rounds who wins: once is not enough.
            doubtful = not self.tells_distances and t.mostly >= 1
            return math.inf if doubtful else lag

        return sorted(rows, key=lambda t: (behind(t), t.relative_in(state)))

    def time(self, collective: str, way: str, size: float, dtypes: str = "", state: str = "") -> float | None:
        """Seconds that a way takes by what was measured of it, between two sizes by a straight line; None
        where nothing was."""
        points = sorted((t.bytes, t.seconds_in(state)) for t in self._of(collective, dtypes) if t.way == way)
        if not points:
            return None
        if size <= points[0][0]:
            return points[0][1]
        for (b0, t0), (b1, t1) in pairwise(points):
            if b0 <= size <= b1:
                return t0 + (t1 - t0) * (size - b0) / (b1 - b0)
        b1, t1 = points[-1]
        return t1 * size / b1

    def relative(
        self, collective: str, way: str, size: int, dtypes: str = "", state: str = ""
    ) -> float | None:
        """A way's time / the reference's, at the measured size nearest to `size`; None where it was not run,
        or left the race early."""
        sizes = self.sizes_of(collective, dtypes)
        if not sizes:
            return None
        nearest = min(sizes, key=lambda each: abs(math.log(each / max(size, 1))))
        rows = self.at(collective, nearest, dtypes, state)
        found = [t for t in rows if t.way == way and 2 * t.rounds > max(r.rounds for r in rows)]
        return found[0].relative_in(state) if found else None

    @property
    def tells_distances(self) -> bool:
        """Whether the ranks can tell how far apart their processors are: not where they share them, and not
        GPUs."""
        return self.device == "cpu" and self.ranks <= self.machine.processors

    def decisions(self) -> DecisionTable:
        """For every measured size the quickest way, up to half way (in factors) to the neighbouring sizes;
        for each distance between the processors by what was measured at that distance."""
        only = len({dtype_class(t.dtype) for t in self.timings}) == 1
        distances = DISTANCES if self.tells_distances else ("any",)
        return DecisionTable(
            replace(row, dtypes="any" if only else dtypes, distance=distance)
            for dtypes in DTYPE_CLASSES
            for distance in distances
            for row in self._decisions(dtypes, "" if distance == "any" else distance)
        )

    def _decisions(self, dtypes: str, state: str) -> Iterator[Decision]:
        for collective in sorted({t.collective for t in self._of("", dtypes)}):
            sizes = self.sizes_of(collective, dtypes)
            edges = [0, *(math.ceil(math.sqrt(a * b)) for a, b in pairwise(sizes)), None]
            for size, begin, end in zip(sizes, edges[:-1], edges[1:], strict=True):
                best, *others = self.at(collective, size, dtypes, state)
                if state and best.by_state and state not in best.by_state:
                    # In the other state another way may be best; the fast path fits itself to both.
                    best = next((t for t in (best, *others) if t.way == t.reference), best)
                    others = [t for t in self.at(collective, size, dtypes) if t is not best]
                worth = WORTH_TRYING * best.relative_in(state)
                alpha, beta = self._line(collective, best.way, size, dtypes, state)
                yield Decision(
                    collective,
                    begin or 0,
                    end,
                    best.way,
                    basis="measured",
                    reason=_reason(best, others, state),
                    alpha=alpha,
                    beta=beta,
                    others=tuple(t.way for t in others if t.relative_in(state) <= worth)[:3],
                )

    def _line(self, collective: str, way: str, size: int, dtypes: str, state: str) -> tuple[float, float]:
        """(alpha, beta) of a way near a size, by its times at the sizes around."""

        def time(at: int) -> float:
            return self.time(collective, way, at, dtypes, state) or 0.0

        sizes = self.sizes_of(collective, dtypes)
        place = sizes.index(size)
        low, high = sizes[max(place - 1, 0)], sizes[min(place + 1, len(sizes) - 1)]
        beta = 0.0
        if low < high:
            beta = min(max((time(high) - time(low)) / (high - low), 0.0), time(size) / size)
        return time(size) - beta * size, beta

    def _of(self, collective: str, dtypes: str) -> list[Timing]:
        return [
            t
            for t in self.timings
            if collective in ("", t.collective) and dtypes in ("", dtype_class(t.dtype))
        ]


def _timing(row: dict[str, Any]) -> Timing:
    by_state = {state: (float(pair[0]), float(pair[1])) for state, pair in row["by_state"].items()}
    return Timing(**{**row, "by_state": by_state})


def _reason(best: Timing, others: list[Timing], state: str) -> str:
    from pycoll.bench.units import format_seconds, format_size

    text = f"{format_seconds(best.seconds_in(state))} at {format_size(best.bytes)}"
    if state and best.by_state and state not in best.by_state:
        return f"{text}, not measured in this state of the machine"
    if others:
        ratio = others[0].relative_in(state) / best.relative_in(state)
        text += f"; next {others[0].way}, {ratio:.2f} times that"
    return text


# Where profiles are kept


def default_path(ranks: int, machine: Machine | GpuMachine | None = None) -> Path:
    """Where `pycoll tune` writes, and groups of so many ranks look: under the user's cache folder."""
    where = machine or Machine.here()
    kind = "cuda-" if isinstance(where, GpuMachine) else ""
    return folder() / f"{kind}{where.id}-{ranks}.json"


def folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "pycoll", "profiles")


def for_group(asked: object, ranks: int) -> Profile | None:
    """The profile that a group of so many ranks uses: that asked for, else PYCOLL_PROFILE's, else the one at
    the default place, if there is one that this version can use.

    Raises InvalidArgument where one that was asked for cannot be read, or is of another machine.
    """
    if asked is not None:
        return _settled(asked, ranks, None, "init")
    with _of_variable(VARIABLE):
        return _settled(os.environ.get(VARIABLE) or None, ranks, None, "init")


def for_gpus(asked: object, ranks: int, machine: Callable[[], GpuMachine]) -> Profile | None:
    """The same for a group of GPUs: PYCOLL_CUDA_PROFILE names one, and "none" there, or as PYCOLL_PROFILE,
    uses none. ``machine`` is asked only where there is a profile, as it takes a while to answer."""
    if not wanted_for_gpus(asked, ranks):
        return None
    if asked is not None:
        return _settled(asked, ranks, machine, "cuda.Group")
    with _of_variable(CUDA_VARIABLE):
        return _settled(os.environ.get(CUDA_VARIABLE) or None, ranks, machine, "cuda.Group")


@contextmanager
def _of_variable(name: str) -> Iterator[None]:
    try:
        yield
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error}") from None


def wanted_for_gpus(asked: object, ranks: int) -> bool:
    """Whether there may be a profile for a group of GPUs."""
    if asked is None:
        asked = os.environ.get(CUDA_VARIABLE) or None
    if asked is None:
        off = os.environ.get(VARIABLE, "").lower() == "none"
        return not off and any(folder().glob(f"cuda-*-{ranks}.json"))
    return asked is not False and not (isinstance(asked, str) and asked.lower() == "none")


def _settled(
    asked: object, ranks: int, machine: Callable[[], GpuMachine] | None, caller: str
) -> Profile | None:
    """``machine``: of GPUs; None: this host's processors."""
    if asked is False or (isinstance(asked, str) and asked.lower() == "none"):
        return None
    if isinstance(asked, (str, PathLike)):
        profile = Profile.load(asked)
        profile.require(machine() if machine else Machine.here(), ranks, str(asked))
        return profile
    if isinstance(asked, Profile):
        asked.require(machine() if machine else Machine.here(), ranks, f"given to {caller}")
        return asked
    if asked is not None:
        raise InvalidArgument(
            f"{caller}: profile is a {type(asked).__name__}: give a file of pycoll tune, a Profile, or False"
        )
    return _at_default_place(ranks, machine)


def _at_default_place(ranks: int, machine: Callable[[], GpuMachine] | None) -> Profile | None:
    import logging

    from pycoll import __version__

    try:
        here = machine() if machine else Machine.here()
        path = default_path(ranks, here)
        if not path.exists():
            return None
        profile = Profile.load(path)
        profile.require(here, ranks, str(path))
    except (InvalidArgument, OSError, RuntimeError) as error:  # not asked for: it must not stop a job
        logging.getLogger("pycoll").warning("%s; it is left unused", error)
        return None
    if profile.version != __version__:
        logging.getLogger("pycoll").info(
            "the profile %s is of pycoll %s and left unused: run pycoll tune again", path, profile.version
        )
        return None
    return profile
