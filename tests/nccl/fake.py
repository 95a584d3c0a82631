"""NCCL's point-to-point between threads, strict where NCCL would only go wrong now and then."""

from __future__ import annotations

import ctypes
import queue
import threading
from dataclasses import dataclass, field

#: Bytes of ncclDataType_t.
SIZES = {0: 1, 1: 1, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2, 10: 1, 11: 1}
PATIENCE = 60.0


@dataclass
class Operation:
    communicator: FakeCommunicator
    sends: bool
    address: int
    bytes: int
    peer: int


class FakeNccl:
    """The module ``cupy.cuda.nccl``: groups belong to the thread that opens them."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.links = {(a, b): queue.Queue() for a in range(ranks) for b in range(ranks)}
        self.thread = threading.local()

    def communicator(self, rank: int) -> FakeCommunicator:
        return FakeCommunicator(self, rank)

    def groupStart(self) -> None:
        assert getattr(self.thread, "group", None) is None, "groups are not nested here"
        self.thread.group = []

    def groupEnd(self) -> None:
        group: list[Operation] = self.thread.group
        self.thread.group = None
        assert group, "an empty group"
        self.check_independent(group)
        for operation in group:
            if operation.sends:
                link = self.links[operation.communicator.rank, operation.peer]
                link.put(ctypes.string_at(operation.address, operation.bytes))
        for operation in group:
            if not operation.sends:
                data = self.links[operation.peer, operation.communicator.rank].get(timeout=PATIENCE)
                assert len(data) == operation.bytes, "a send and its receive differ in size"
                ctypes.memmove(operation.address, data, operation.bytes)

    @staticmethod
    def check_independent(group: list[Operation]) -> None:
        """Operations of a group run in any order, so a receive may not touch what another one touches."""
        for one in group:
            for other in group:
                if one is other or one.sends:
                    continue
                apart = one.address + one.bytes <= other.address or other.address + other.bytes <= one.address
                assert apart, "a receive overlaps another operation of its group"


@dataclass
class FakeCommunicator:
    nccl: FakeNccl
    rank: int
    streams: list[int] = field(default_factory=list)

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._add(True, sendbuf, count, datatype, peer, stream)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._add(False, recvbuf, count, datatype, peer, stream)

    def _add(self, sends: bool, address: int, count: int, datatype: int, peer: int, stream: int) -> None:
        group = getattr(self.nccl.thread, "group", None)
        assert group is not None, "outside of a group a send could wait for its receive for ever"
        assert 0 <= peer < self.nccl.ranks
        assert peer != self.rank
        assert count > 0
        self.streams.append(stream)
        group.append(Operation(self, sends, address, count * SIZES[datatype], peer))
