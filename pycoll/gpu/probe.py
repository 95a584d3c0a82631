"""`pycoll topo probe --device cuda`: how fast the GPUs of this host reach each other, by copies between them.

    matrix, wiring = probe_gpus()
    fitted(matrix, wiring).topology.save("gpus.yaml")

One process holds all GPUs. The measurements are those of every probe (`pycoll.topology.probe`), with copies
of the GPUs' copy engines for messages; the graph is what the driver says of NVLink, NVSwitch and PCIe, and
each kind of link gets the bandwidth that the pairs it limits showed. Latencies stay NCCL's figures: a copy
engine takes several microseconds to start, which a kernel's loads and stores do not.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from pycoll.errors import InvalidArgument, Unsupported
from pycoll.gpu import wiring
from pycoll.gpu.links import Ways
from pycoll.topology import Topology
from pycoll.topology.fit import Fit, fit, quality_of
from pycoll.topology.importers import figures
from pycoll.topology.matrix import LinkMatrix
from pycoll.topology.measure import PING_BYTES, Activity, Flow, Samples
from pycoll.topology.probe import ProbeOptions, measure

__all__ = ["Copies", "CopyMeasurer", "CupyCopies", "fitted", "on_wiring", "probe_gpus"]

Progress = Callable[[str, float], None]

#: Copies of a stream that are put on a GPU at once, at least.
_LEAST_COPIES = 4


class Copies(Protocol):
    """What the probe needs of the GPUs of a host. Seconds are by the GPUs' clocks."""

    @property
    def names(self) -> Sequence[str]:
        """The models of the GPUs."""

    def chain(self, flows: Sequence[Flow], size: int) -> float:
        """Copies one after another, on one stream."""

    def together(self, flows: Sequence[Flow], sizes: Sequence[int], counts: Sequence[int]) -> Sequence[float]:
        """So many copies of each flow, the flows at once, each on a stream of its own: each one's seconds."""

    def inside(self, activity: Activity, gpus: Sequence[int], size: int, count: int) -> Sequence[float]:
        """GPUs at once that copy within their memory, or add to it: each one's seconds."""


class CopyMeasurer:
    """A :class:`pycoll.topology.measure.Measurer` whose ranks are the GPUs of one host."""

    def __init__(self, copies: Copies, host: str = "") -> None:
        self._copies = copies
        self.hosts = [host or socket.gethostname()] * len(copies.names)
        self._begin = time.monotonic()
        self._rates: dict[Flow, float] = {}

    def elapsed(self) -> float:
        return time.monotonic() - self._begin

    def ping(self, a: int, b: int, messages: int, repeats: int) -> Samples:
        flows = [Flow(a, b)] * messages + [Flow(b, a)]
        self._copies.chain(flows, PING_BYTES)  # the first reaches cold memory
        return np.array([self._copies.chain(flows, PING_BYTES) for _ in range(repeats)])

    def transfer(self, flow: Flow, size: int, repeats: int) -> Samples:
        self._copies.chain([flow], size)
        taken = np.array([self._copies.chain([flow], size) for _ in range(repeats)])
        self._rates[flow] = max(self._rates.get(flow, 0.0), size / float(np.median(taken)))
        return taken

    def stream(self, flows: Sequence[Flow], sizes: Sequence[int], seconds: float, repeats: int) -> Samples:
        """As many copies of each flow as it would make alone in half of the time: flows that share a link
        take up to twice as long, and those that end first leave little of the time to the others."""
        rates = [
            self._rates.get(flow, 0.0) or self._rate(flow, size)
            for flow, size in zip(flows, sizes, strict=True)
        ]
        counts = [
            max(_LEAST_COPIES, math.ceil(seconds / 2 * rate / size))
            for rate, size in zip(rates, sizes, strict=True)
        ]
        moved = np.array(counts, np.float64) * np.array(sizes, np.float64)
        return np.stack(
            [moved / np.array(self._copies.together(flows, sizes, counts)) for _ in range(repeats)]
        )

    def _rate(self, flow: Flow, size: int) -> float:
        self.transfer(flow, size, 2)
        return self._rates[flow]

    def compute(self, activity: Activity, ranks: Sequence[int], size: int, seconds: float) -> Samples:
        once = max(self._copies.inside(activity, ranks, size, 1))
        count = max(1, math.ceil(seconds / max(once, 1e-9)))
        taken = np.array(self._copies.inside(activity, ranks, size, count))
        rates: Samples = count * size / taken
        return rates

    def distances(self) -> dict[str, float]:
        return {self.hosts[0]: math.nan}  # of processors, which have no part in it


class CupyCopies:
    """By cupy: peer copies (cudaMemcpyPeerAsync), streams and events. Raises Unsupported where cupy or GPUs
    are missing."""

    def __init__(self) -> None:
        try:
            self._cupy: Any = import_module("cupy")
        except ImportError:
            raise Unsupported(
                "topo probe --device cuda needs cupy: pip install cupy-cuda13x (or cupy-cuda12x)"
            ) from None
        self._runtime = self._cupy.cuda.runtime
        try:
            count = int(self._runtime.getDeviceCount())
            self.names = [_text(self._runtime.getDeviceProperties(i)["name"]) for i in range(count)]
        except Exception as error:  # cupy's own kinds, which are not there without it
            raise Unsupported(f"topo probe --device cuda: no GPU can be used: {error}") from None
        self._memory: dict[tuple[int, str], Any] = {}
        self._streams: dict[tuple[int, int], Any] = {}
        for a in range(count):
            for b in range(count):
                self._open_peer(a, b)

    def _open_peer(self, a: int, b: int) -> None:
        """Without access, copies go through the host's memory, which is then what is measured."""
        if a == b or not self._runtime.deviceCanAccessPeer(a, b):
            return
        with self._cupy.cuda.Device(a):
            try:
                self._runtime.deviceEnablePeerAccess(b)
            except self._runtime.CUDARuntimeError as error:
                if "AlreadyEnabled" not in str(error):
                    raise Unsupported(f"GPU {a} cannot reach GPU {b}: {error}") from None

    def chain(self, flows: Sequence[Flow], size: int) -> float:
        first = flows[0].src
        with self._cupy.cuda.Device(first):
            stream = self._stream(first, 0)
            for flow in flows:
                self._buffers(flow, size)
            stream.synchronize()
            begin, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
            begin.record(stream)
            for flow in flows:
                self._copy(flow, size, stream)
            end.record(stream)
            end.synchronize()
            return float(self._cupy.cuda.get_elapsed_time(begin, end)) / 1e3

    def together(self, flows: Sequence[Flow], sizes: Sequence[int], counts: Sequence[int]) -> list[float]:
        def put(number: int, stream: Any) -> None:
            for _ in range(counts[number]):
                self._copy(flows[number], sizes[number], stream)

        for flow, size in zip(flows, sizes, strict=True):
            self._buffers(flow, size)
        return self._at_once([flow.src for flow in flows], put)

    def inside(self, activity: Activity, gpus: Sequence[int], size: int, count: int) -> list[float]:
        def put(number: int, stream: Any) -> None:
            source, target = (self._array(gpus[number], name, size) for name in ("out", "in"))
            with stream:
                for _ in range(count):
                    if activity == "reduce":
                        self._cupy.add(target, source, out=target)
                    else:
                        self._cupy.copyto(target, source)

        return self._at_once(list(gpus), put)

    def _at_once(self, gpus: Sequence[int], put: Callable[[int, Any], None]) -> list[float]:
        """What each number puts on a stream of its GPU, begun together: seconds of each."""
        events = []
        for number, gpu in enumerate(gpus):
            with self._cupy.cuda.Device(gpu):
                stream = self._stream(gpu, number)
                begin, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
                begin.record(stream)
                put(number, stream)
                end.record(stream)
                events.append((gpu, begin, end))
        taken = []
        for gpu, begin, end in events:
            with self._cupy.cuda.Device(gpu):
                end.synchronize()
                taken.append(float(self._cupy.cuda.get_elapsed_time(begin, end)) / 1e3)
        return taken

    def _copy(self, flow: Flow, size: int, stream: Any) -> None:
        source, target = self._buffers(flow, size)
        self._runtime.memcpyPeerAsync(target.data.ptr, flow.dst, source.data.ptr, flow.src, size, stream.ptr)

    def _buffers(self, flow: Flow, size: int) -> tuple[Any, Any]:
        return self._array(flow.src, "out", size), self._array(flow.dst, f"in {flow.src}", size)

    def _array(self, gpu: int, name: str, size: int) -> Any:
        held = self._memory.get((gpu, name))
        elements = -(-size // 4)
        if held is None or held.size < elements:
            with self._cupy.cuda.Device(gpu):
                held = self._memory[gpu, name] = self._cupy.zeros(elements, "float32")
                self._runtime.deviceSynchronize()
        return held[:elements]

    def _stream(self, gpu: int, number: int) -> Any:
        if (gpu, number) not in self._streams:
            self._streams[gpu, number] = self._cupy.cuda.Stream(non_blocking=True)
        return self._streams[gpu, number]


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def probe_gpus(
    options: ProbeOptions | None = None, progress: Progress | None = None, copies: Copies | None = None
) -> tuple[LinkMatrix, Topology | str]:
    """What was measured, and how the GPUs are wired, or why nobody says it.

    Raises Unsupported where cupy or GPUs are missing, InvalidArgument for one GPU; Timeout as
    `pycoll.topology.probe.probe` does.
    """
    made: Copies = copies if copies is not None else CupyCopies()
    if len(made.names) < 2:
        raise InvalidArgument(
            "topo probe --device cuda measures links between GPUs, and there is only one here"
        )
    measurer = CopyMeasurer(made)
    matrix = measure(measurer, options, progress)
    matrix.stamp |= {"device": "cuda", "gpus": list(made.names)}
    wired: Topology | str
    try:
        wired = wiring.here()
    except Unsupported as error:
        wired = str(error)
    if isinstance(wired, Topology) and len(wired.ranks) != matrix.ranks:
        wired = f"the driver lists {len(wired.ranks)} GPUs, and CUDA {matrix.ranks}"
    return matrix, wired


def fitted(matrix: LinkMatrix, wired: Topology | None, name: str = "") -> Fit:
    """The topology of a matrix: on the wiring, or, without one, fitted as any other."""
    found = fit(matrix, name)
    if wired is None:
        return replace(found, topology=replace(found.topology, about=_about(matrix, "fitted"), text=None))
    topology = on_wiring(wired, matrix, name)
    return replace(found, topology=topology, quality=quality_of(topology, matrix))


def on_wiring(wired: Topology, matrix: LinkMatrix, name: str = "") -> Topology:
    """The wiring with measured bandwidths: those of each kind of link are scaled by the median of what the
    pairs that it limits got alone, to what they would get by the wiring's figures; and each GPU's rates of
    copying and adding. A kind that limits no pair keeps its figure."""
    from pycoll.topology.simulated import SimulatedMeasurer

    ways, machine = Ways(wired), SimulatedMeasurer(wired)
    ratios: dict[str, list[float]] = {}
    for a, b in np.argwhere(~np.isnan(matrix.beta)).tolist():
        kind = ways.narrowest(wired.ranks[a], wired.ranks[b])
        predicted = float(machine.rates([Flow(a, b)])[0])
        ratios.setdefault(kind, []).append(1 / float(matrix.beta[a, b]) / predicted)
    factors = {kind: float(np.median(values)) for kind, values in ratios.items()}
    links = tuple(
        replace(link, bandwidth=float(f"{link.bandwidth * factors.get(link.kind, 1.0):.3g}"))
        for link in wired.links
    )
    nodes = list(wired.nodes)
    for rank, index in enumerate(wired.ranks):
        copy, reduce = matrix.copy_rate[rank], matrix.reduce_rate[rank]
        if np.isfinite(copy) and np.isfinite(reduce):
            rates = float(f"{copy:.3g}"), float(f"{reduce:.3g}")
            nodes[index] = replace(nodes[index], copy_rate=rates[0], reduce_rate=rates[1])
    kept = sorted({link.kind for link in wired.links} - set(factors))
    unknown = f" Not measured, as no pair is limited by them: {', '.join(kept)}." if kept else ""
    said = wired.about.replace(
        figures.SOURCE, "Latencies are NCCL's for each sort of link (src/graph/tuning.cc)."
    )
    about = f"{said} {_about(matrix, 'bandwidths by kind of link')}{unknown}"
    return replace(
        wired, name=name or wired.name, nodes=tuple(nodes), links=links, about=about.strip(), text=None
    )


def _about(matrix: LinkMatrix, how: str) -> str:
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    models = ", ".join(dict.fromkeys(matrix.stamp.get("gpus", [])))
    return (
        f"Measured by pycoll topo probe --device cuda on {when} ({matrix.ranks} x {models}; {how}; copies "
        "between GPUs)."
    )
