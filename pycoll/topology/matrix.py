"""What a probe measured: a matrix of links between ranks, alone and together, and rates inside each rank."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pycoll.errors import TopologyError
from pycoll.topology.measure import Flow

__all__ = ["Figure", "LinkMatrix", "Together"]

VERSION = 1


@dataclass
class Figure:
    """A figure measured several times: its median counts.

    Samples may be labelled with the state that the machine was in; of several states, one is looked at.
    """

    samples: list[float] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)  # of the first samples; the others have none yet
    state: str = ""
    _known: tuple[object, float, float] = (None, math.nan, math.nan)  # of which samples, median, spread

    def add(self, samples: npt.NDArray[np.float64] | Sequence[float]) -> None:
        self.samples += [float(sample) for sample in samples]

    def label(self, state: str) -> None:
        """Says what state the machine was in when the last samples were taken."""
        self.labels += [state] * (len(self.samples) - len(self.labels))

    @property
    def used(self) -> list[float]:
        """The samples of the state that is looked at; all where there are none."""
        labelled = zip(self.samples, self.labels, strict=False)
        return [sample for sample, label in labelled if label == self.state] or self.samples

    @property
    def median(self) -> float:
        return self._figures()[1]

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a share of the median."""
        return self._figures()[2]

    def _figures(self) -> tuple[object, float, float]:
        key = (len(self.samples), len(self.labels), self.state)
        if self.samples and self._known[0] != key:
            used = self.used
            low, middle, high = np.percentile(used, (25, 50, 75)).tolist()
            spread = (high - low) / 2 / abs(middle) if middle and len(used) > 1 else math.nan
            self._known = (key, middle, spread)
        return self._known

    @property
    def error(self) -> float:
        """About the standard error of the median, as a share of it: what more repetitions bring down."""
        count = len(self.used)
        return 1.86 * self.spread / math.sqrt(count) if count > 2 else math.inf  # of a normal distribution


@dataclass(frozen=True)
class Together:
    """Several flows at once, and the bytes/s that each got (median), with their spread.

    ``kind``: "matching" (disjoint pairs), "shift" (every rank of a group sends to the next part of it),
    "exodus" and "influx" (all of a group's ranks send out of it, or receive from outside), "fan out" and "fan
    in" (one rank to several, several to one).
    """

    kind: str
    flows: tuple[Flow, ...]
    rates: tuple[float, ...]
    spreads: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.rates)


@dataclass
class LinkMatrix:
    """All that a probe of ``ranks`` ranks measured. NaN, or None in the file, is what it did not.

    ``alpha`` (s, half a round trip of small messages), ``gap`` (s, by which each further message of a burst
    comes later: the sender's overhead), ``beta`` (s a byte, alone) and ``beta_together`` (s a byte, while
    all ranks exchange in pairs) have shape (ranks, ranks), [source, destination]; each has a ``..._spread``,
    half the distance between quartiles as a share of the median. ``copy_rate`` and ``reduce_rate`` are
    bytes/s by rank alone, ``..._together`` while all ranks do the same.
    """

    hosts: list[str]
    alpha: npt.NDArray[np.float64]
    alpha_spread: npt.NDArray[np.float64]
    gap: npt.NDArray[np.float64]
    beta: npt.NDArray[np.float64]
    beta_spread: npt.NDArray[np.float64]
    beta_together: npt.NDArray[np.float64]
    beta_together_spread: npt.NDArray[np.float64]
    copy_rate: npt.NDArray[np.float64]
    copy_rate_together: npt.NDArray[np.float64]
    reduce_rate: npt.NDArray[np.float64]
    reduce_rate_together: npt.NDArray[np.float64]
    together: list[Together] = field(default_factory=list)
    clusters: list[Any] = field(default_factory=list)  # ranks, nested by switch, as the probe found them
    sampled: bool = False
    pairs_measured: int = 0
    seconds: float = 0.0
    budget: float = 0.0
    unsettled: list[str] = field(default_factory=list)
    stamp: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def empty(cls, hosts: Sequence[str]) -> LinkMatrix:
        """Nothing measured yet."""
        n = len(hosts)
        arrays: dict[str, Any] = {name: np.full((n,) * shape, math.nan) for name, shape in _ARRAYS.items()}
        return cls(hosts=list(hosts), **arrays)

    @property
    def ranks(self) -> int:
        return len(self.hosts)

    def to_json(self) -> str:
        """The matrix as JSON: ``pycoll_matrix`` is the version, the rest is named as the attributes are."""
        fields = {"pycoll_matrix": VERSION, "ranks": self.ranks} | asdict(self)
        return json.dumps(_plain(fields), indent=1, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> LinkMatrix:
        """The matrix that :meth:`to_json` wrote; TopologyError, naming the field, for anything else."""
        try:
            fields = json.loads(text)
            version = fields.pop("pycoll_matrix")
        except (json.JSONDecodeError, AttributeError, TypeError, KeyError) as error:
            raise TopologyError(f"this is no matrix of pycoll topo probe: {error!r}") from error
        if version != VERSION:
            raise TopologyError(f"the matrix has version {version!r}; this pycoll reads version {VERSION}")
        n = fields.pop("ranks", None)
        try:
            for name, shape in _ARRAYS.items():
                array = np.array(fields[name], np.float64)  # None becomes NaN
                if array.shape != (n,) * shape:
                    raise TopologyError(f"matrix: {name} has shape {array.shape}, and there are {n} ranks")
                fields[name] = array
            fields["together"] = [
                Together(
                    each["kind"],
                    tuple(Flow(*flow) for flow in each["flows"]),
                    tuple(each["rates"]),
                    tuple(math.nan if spread is None else spread for spread in each["spreads"]),
                )
                for each in fields["together"]
            ]
            return cls(**fields)
        except (KeyError, TypeError, ValueError) as error:
            raise TopologyError(f"matrix: a field is missing or of the wrong kind: {error!r}") from error

    def save(self, path: str | PathLike[str]) -> None:
        """Writes :meth:`to_json` to a file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> LinkMatrix:
        """Reads a file of :meth:`save`."""
        return cls.from_json(Path(path).read_text(encoding="utf-8"))


_ARRAYS = {
    **dict.fromkeys(("alpha", "alpha_spread", "gap", "beta", "beta_spread"), 2),
    **dict.fromkeys(("beta_together", "beta_together_spread"), 2),
    **dict.fromkeys(("copy_rate", "copy_rate_together", "reduce_rate", "reduce_rate_together"), 1),
}


def _plain(value: Any) -> Any:
    """Lists and numbers for arrays, None for NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
