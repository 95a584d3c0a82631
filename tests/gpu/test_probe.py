"""`pycoll topo probe --device cuda`: what it makes of copies between GPUs, here simulated."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import pycoll
from pycoll.gpu import links, probe, wiring
from pycoll.topology.measure import Flow
from pycoll.topology.probe import ProbeOptions, measure
from pycoll.topology.simulated import SimulatedMeasurer

OPTIONS = ProbeOptions(budget=60, quick=True)


def slower(topology: pycoll.Topology, kind: str, factor: float) -> pycoll.Topology:
    from dataclasses import replace

    scaled = tuple(
        replace(link, bandwidth=link.bandwidth * factor) if link.kind == kind else link
        for link in topology.links
    )
    return replace(topology, links=scaled, text=None)


@pytest.mark.parametrize(("name", "kind"), [("dgx-h100", "nvlink4"), ("dgx-1v", "nvlink2")])
def test_each_kind_of_link_gets_what_was_measured(name: str, kind: str) -> None:
    wired = pycoll.Topology.load(name)
    truth = slower(wired, kind, 0.8)
    matrix = measure(SimulatedMeasurer(truth), OPTIONS)
    found = probe.on_wiring(wired, matrix)
    for link, right in zip(found.links, truth.links, strict=True):
        assert link.bandwidth == pytest.approx(right.bandwidth, rel=0.02), right.name
        assert link.latency == right.latency
    assert pycoll.Topology.from_yaml(found.to_yaml()) == found
    fitted = probe.fitted(matrix, wired, "mine")
    assert fitted.topology.name == "mine"
    alone = next(quality for quality in fitted.quality if quality.what == "bandwidth alone")
    assert alone.worst < 0.02


def test_without_wiring_the_graph_is_fitted() -> None:
    matrix = measure(SimulatedMeasurer(pycoll.Topology.load("dgx-h100")), OPTIONS)
    fitted = probe.fitted(matrix, None)
    rates = [link.bandwidth for link in fitted.topology.links]
    assert np.median(rates) == pytest.approx(370.8e9, rel=0.02)
    assert "topo probe --device cuda" in fitted.topology.about


class SimulatedCopies:
    """pycoll.gpu.probe.Copies of a topology."""

    def __init__(self, topology: pycoll.Topology) -> None:
        self.names = ["Fake GPU"] * len(topology.ranks)
        self._measurer = SimulatedMeasurer(topology, hosts=["host"] * len(topology.ranks))

    def chain(self, flows: Sequence[Flow], size: int) -> float:
        return 2e-6 * len(flows) + sum(size / self._measurer.rates([flow])[0] for flow in flows)

    def together(self, flows: Sequence[Flow], sizes: Sequence[int], counts: Sequence[int]) -> list[float]:
        rates = self._measurer.rates(flows)
        return [size * count / rate for size, count, rate in zip(sizes, counts, rates, strict=True)]

    def inside(self, activity: str, gpus: Sequence[int], size: int, count: int) -> list[float]:
        return [size * count / (2e12 if activity == "copy" else 1e12)] * len(gpus)


def test_the_whole_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    wired = pycoll.Topology.load("dgx-h100").first(4)
    monkeypatch.setattr(wiring, "here", lambda: wired)
    truth = slower(wired, "nvlink4", 0.9)
    matrix, found = probe.probe_gpus(OPTIONS, copies=SimulatedCopies(truth))
    assert found is wired
    topology = probe.fitted(matrix, wired).topology
    for link in topology.links:
        assert link.bandwidth == pytest.approx(0.9 * 370.8e9, rel=0.02)
    assert {topology.nodes[index].copy_rate for index in topology.ranks} == {2e12}
    assert {topology.nodes[index].reduce_rate for index in topology.ranks} == {1e12}
    assert links.classes(topology) == {"nvswitch": 6}
    assert "4 x Fake GPU" in topology.about
    assert np.nanmedian(matrix.alpha) == pytest.approx(2e-6, rel=0.01)


def test_wiring_that_does_not_fit_is_left_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    wired = pycoll.Topology.load("dgx-h100")
    monkeypatch.setattr(wiring, "here", lambda: wired)
    _, found = probe.probe_gpus(OPTIONS, copies=SimulatedCopies(wired.first(4)))
    assert found == "the driver lists 8 GPUs, and CUDA 4"


def test_one_gpu_has_nothing_to_measure() -> None:
    with pytest.raises(pycoll.InvalidArgument, match="only one here"):
        probe.probe_gpus(OPTIONS, copies=SimulatedCopies(pycoll.Topology.load("dgx-h100").first(1)))


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(pycoll.Unsupported, match="pip install cupy"):
        probe.CupyCopies()


# cupy's part, on a cupy that only keeps books


class Books:
    """cupy with 3 GPUs; a peer copy takes size / 100 GB/s + 1 us of its stream's time."""

    def __init__(self) -> None:
        self.current = 0
        self.pointers: dict[int, int] = {}  # address -> GPU
        self.copies: list[tuple[int, int, int]] = []
        self.access: set[tuple[int, int]] = set()
        self.streams: list[Any] = []
        books = self

        class Stream:
            def __init__(self, non_blocking: bool) -> None:
                assert non_blocking
                self.gpu, self.ptr, self.time = books.current, len(books.streams), 0.0
                books.streams.append(self)

            def synchronize(self) -> None:
                pass

            def __enter__(self) -> None:
                books.stream = self

            def __exit__(self, *error: object) -> None:
                pass

        class Event:
            def record(self, stream: Any) -> None:
                assert stream.gpu == books.current, "an event and its stream are of one GPU"
                self.time = stream.time

            def synchronize(self) -> None:
                pass

        class CudaError(Exception):
            pass

        @contextmanager
        def device(index: int) -> Any:
            before, self.current = self.current, index
            yield
            self.current = before

        self.module: Any = types.ModuleType("cupy")
        runtime = types.SimpleNamespace(
            getDeviceCount=lambda: 3,
            getDeviceProperties=lambda index: {"name": b"Fake GPU"},
            deviceCanAccessPeer=lambda a, b: int({a, b} != {0, 2}),
            deviceEnablePeerAccess=lambda b: self.access.add((self.current, b)),
            deviceSynchronize=lambda: None,
            memcpyPeerAsync=self.copy,
            CUDARuntimeError=CudaError,
        )
        self.module.cuda = types.SimpleNamespace(
            runtime=runtime,
            Device=device,
            Stream=Stream,
            Event=Event,
            get_elapsed_time=lambda begin, end: 1e3 * (end.time - begin.time),
        )
        self.module.zeros = self.zeros
        self.module.copyto = lambda target, source: self.work(target)
        self.module.add = lambda target, source, out: self.work(target)

    def zeros(self, elements: int, dtype: str) -> Any:
        address = 1000 + len(self.pointers)
        self.pointers[address] = self.current

        class Array:
            size = elements
            data = types.SimpleNamespace(ptr=address)

            def __getitem__(self, part: slice) -> Any:
                assert part.stop <= elements
                return self

        return Array()

    def copy(self, target: int, to: int, source: int, src: int, size: int, stream: int) -> None:
        assert self.pointers[target] == to
        assert self.pointers[source] == src
        self.copies.append((src, to, size))
        self.streams[stream].time += 1e-6 + size / 100e9

    def work(self, target: Any) -> None:
        assert self.pointers[target.data.ptr] == self.stream.gpu == self.current
        self.stream.time += 1e-5


def test_cupy_is_asked_for_the_right_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books()
    monkeypatch.setitem(sys.modules, "cupy", books.module)
    copies = probe.CupyCopies()
    assert copies.names == ["Fake GPU"] * 3
    assert books.access == {(0, 1), (1, 0), (1, 2), (2, 1)}
    assert copies.chain([Flow(0, 1), Flow(1, 0)], 1 << 20) == pytest.approx(2e-6 + (2 << 20) / 100e9)
    assert books.copies == [(0, 1, 1 << 20), (1, 0, 1 << 20)]
    taken = copies.together([Flow(0, 1), Flow(0, 2)], [100, 200], [3, 2])
    assert taken == pytest.approx([3e-6 + 300 / 100e9, 2e-6 + 400 / 100e9])
    assert copies.inside("copy", [0, 2], 4096, 5) == pytest.approx([5e-5, 5e-5])
    assert copies.inside("reduce", [1], 4096, 2) == pytest.approx([2e-5])


def test_a_cupy_that_sees_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books()

    def none() -> int:
        raise books.module.cuda.runtime.CUDARuntimeError("cudaErrorNoDevice")

    books.module.cuda.runtime.getDeviceCount = none
    monkeypatch.setitem(sys.modules, "cupy", books.module)
    with pytest.raises(pycoll.Unsupported, match="no GPU can be used: cudaErrorNoDevice"):
        probe.CupyCopies()
