"""Import of MSCCL algorithm files: what the thread blocks of GPUs do, as the transfers of a schedule.

A file says which chunk of which buffer each thread block sends, receives, adds and copies. A schedule knows
no buffers: at any time a rank has one value of a piece. So the file is executed on symbols. A chunk is
either the rank's current value of a piece, or a value received and not yet used; what is done with it says
whether its transfer copies or reduces. Rounds are the least numbers that keep every order the execution
rests on.

The file format is that of the MSCCL runtime: github.com/microsoft/msccl, and Cowan et al., MSCCLang:
Microsoft Collective Communication Language, ASPLOS 2023.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pycoll import _core
from pycoll._core import ScheduleError
from pycoll._msccl_file import RECEIVES, SENDS, STORES, File, Place, Step, ThreadBlock, parse
from pycoll.schedule import Schedule


def schedule_from_xml(text: str, *, root: int = 0) -> Schedule:
    """See :meth:`pycoll.Schedule.from_msccl_xml`."""
    file = parse(text, root)
    execution = _Execution(file)
    execution.run()
    execution.deliver()
    transfers = [
        (round_, transfer.src, transfer.dst, transfer.piece, transfer.reduce)
        for round_, transfer in zip(_rounds(execution.transfers), execution.transfers, strict=True)
    ]
    schedule = Schedule.from_transfers(
        sorted(transfers, key=lambda row: (row[0], row[3], row[1], row[2])),
        collective=file.collective,
        ranks=len(file.gpus),
        pieces=file.pieces,
        root=file.root,
        algorithm=file.name,
    )
    schedule.verify()
    return schedule


@dataclass(frozen=True)
class _Message:
    """A rank's value of a piece as it was after its `version`th change."""

    src: int
    piece: int
    version: int


@dataclass
class _Value:
    """What a chunk holds: the rank's own value of a piece or, pending, the sum of messages not yet used."""

    piece: int
    version: int = 0
    pending: tuple[_Message, ...] = ()


@dataclass(frozen=True)
class _Transfer:
    src: int
    dst: int
    piece: int
    reduce: bool
    read: int  # version of the value that is sent
    written: int  # version of the value that it makes


@dataclass
class _Execution:
    file: File
    transfers: list[_Transfer] = field(default_factory=list)

    def __post_init__(self) -> None:
        file, ranks = self.file, len(self.file.gpus)
        self.blocks = [block for gpu in file.gpus for block in gpu.values()]
        self.wires: dict[tuple[int, int, int], deque[list[_Message]]] = {}
        self.layouts = [
            _core.piece_layout(file.collective, ranks, file.pieces, file.root, rank) for rank in range(ranks)
        ]
        # Of every rank, what its chunks hold, and how often its value of a piece has changed.
        self.chunks: list[dict[Place, _Value]] = [{} for _ in range(ranks)]
        self.versions: list[dict[int, int]] = [{} for _ in range(ranks)]
        for rank, layout in enumerate(self.layouts):
            for piece, (index, _) in enumerate(layout):
                if index >= 0:
                    self.chunks[rank][self._place(rank, ("i", index))] = _Value(piece)
                    self.versions[rank][piece] = 0

    def _place(self, rank: int, place: Place) -> Place:
        """In place, the smaller of input and output is the rank's part of the other."""
        if not self.file.in_place:
            return place
        buffer, offset = place
        shard = rank * (self.file.pieces // len(self.file.gpus))
        collective = self.file.collective
        if collective in ("all_gather", "gather") and buffer == "i":
            return "o", offset + shard
        if collective in ("reduce_scatter", "scatter") and buffer == "o":
            return "i", offset + shard
        if collective not in ("all_gather", "gather") and buffer == "o":
            return "i", offset
        return place

    def run(self) -> None:
        """Executes all steps, sends as early as they can go: they disturb nothing."""
        for gpu in self.file.gpus:
            self._send_all(gpu)
        progress = True
        while progress:
            progress = False
            for block in self.blocks:
                if self._advance(block):
                    progress = True
                    self._send_all(self.file.gpus[block.gpu])
        for block in self.blocks:
            if block.done < len(block.steps):
                where = block.steps[block.done].where
                raise ScheduleError(f"{where}: can never run: what it waits for never happens")
        for (src, dst, channel), wire in self.wires.items():
            if wire:
                raise ScheduleError(
                    f"gpu {dst} never receives what gpu {src} sends it last on channel {channel}"
                )

    def _send_all(self, gpu: dict[int, ThreadBlock]) -> None:
        while sum(self._advance(block, only=("s", "nop")) for block in gpu.values()):
            pass

    def _advance(self, block: ThreadBlock, only: tuple[str, ...] | None = None) -> bool:
        if block.done == len(block.steps):
            return False
        step = block.steps[block.done]
        if only is not None and step.type not in only:
            return False
        if step.after is not None and self.file.gpus[block.gpu][step.after[0]].done <= step.after[1]:
            return False
        received: list[_Message] = []
        if step.type in RECEIVES:
            wire = self.wires.get((block.receive, block.gpu, block.channel))
            if not wire:
                return False
            received = wire.popleft()
            if len(received) != step.count:
                raise ScheduleError(
                    f"{step.where}: cnt={step.count}, but gpu {block.receive} sends {len(received)}"
                )
        if step.type != "nop":
            sent = [self._execute(block.gpu, step, i, received) for i in range(step.count)]
            if step.type in SENDS:
                messages = [self._as_message(block.gpu, value, step.where) for value in sent]
                self.wires.setdefault((block.gpu, block.send, block.channel), deque()).append(messages)
        block.done += 1
        return True

    def _execute(self, rank: int, step: Step, i: int, received: list[_Message]) -> _Value:
        """Chunk i of a step: what it made."""
        source = self._place(rank, (step.source[0], step.source[1] + i))
        destination = self._place(rank, (step.destination[0], step.destination[1] + i))
        if step.type in ("s", "cpy"):
            value = self._read(rank, source, step.where)
        elif step.type == "re":
            addend = self._read(rank, source, step.where)
            value = self._add(rank, self._read(rank, destination, step.where), addend, step.where)
        else:
            value = _Value(received[i].piece, pending=(received[i],))
            if step.type.startswith("rr"):
                value = self._add(rank, self._read(rank, source, step.where), value, step.where)
        if step.type in STORES or step.type in ("cpy", "re"):
            self.chunks[rank][destination] = value
        return value

    def _read(self, rank: int, place: Place, where: str) -> _Value:
        value = self.chunks[rank].get(place)
        if value is None:
            raise ScheduleError(f"{where}: reads chunk {place[0]}[{place[1]}], which holds nothing")
        return value

    def _add(self, rank: int, left: _Value, right: _Value, where: str) -> _Value:
        if left.piece != right.piece:
            raise ScheduleError(f"{where}: adds piece {right.piece} to piece {left.piece}")
        if left.pending and right.pending:
            return _Value(left.piece, pending=left.pending + right.pending)
        own, addend = (right, left) if left.pending else (left, right)
        self._require_current(rank, own, where)
        if not addend.pending:
            raise ScheduleError(f"{where}: adds the gpu's own value of piece {own.piece} to itself")
        for message in addend.pending:
            own = self._bring(rank, message, reduce=True)
        return own

    def _as_message(self, rank: int, value: _Value, where: str) -> _Message:
        self._settle(rank, value, where)
        self._require_current(rank, value, where)
        return _Message(rank, value.piece, value.version)

    def _settle(self, rank: int, value: _Value, where: str) -> None:
        """A message that is used for more than adding was a copy."""
        if len(value.pending) > 1:
            raise ScheduleError(
                f"{where}: uses a sum of received values of piece {value.piece} that the gpu's own is not "
                "part of; in a schedule a rank has one value of a piece, so this does not map"
            )
        if value.pending:
            value.version = self._bring(rank, value.pending[0], reduce=False).version
            value.pending = ()

    def _bring(self, rank: int, message: _Message, reduce: bool) -> _Value:
        version = self.versions[rank].get(message.piece, 0) + 1
        self.versions[rank][message.piece] = version
        self.transfers.append(_Transfer(message.src, rank, message.piece, reduce, message.version, version))
        return _Value(message.piece, version)

    def _require_current(self, rank: int, value: _Value, where: str) -> None:
        if value.version != self.versions[rank].get(value.piece, 0):
            raise ScheduleError(
                f"{where}: uses a value of piece {value.piece} that gpu {rank} has since received or "
                "added to; in a schedule a rank has one value of a piece, so this does not map"
            )

    def deliver(self) -> None:
        """Brings what still lies in output chunks, and checks that every output chunk has what it should."""
        for rank, layout in enumerate(self.layouts):
            for piece, (_, index) in enumerate(layout):
                if index < 0:
                    continue
                where = f"gpu {rank}, at the end, output chunk {index}"
                value = self._read(rank, self._place(rank, ("o", index)), where)
                if value.piece != piece:
                    raise ScheduleError(f"{where}: holds piece {value.piece}; it should hold piece {piece}")
                self._settle(rank, value, where)
                self._require_current(rank, value, where)


def _rounds(transfers: list[_Transfer]) -> list[int]:
    """The least round for every transfer such that each reads the version it read in the execution.

    A read comes after the write of its version, and not after the round of the next write. Writes to one
    place keep their order; reduces may share a round.
    """
    writers = {(t.dst, t.piece, t.written): index for index, t in enumerate(transfers)}
    later: list[list[tuple[int, int]]] = [[] for _ in transfers]  # (transfer, rounds after this one at least)
    for index, t in enumerate(transfers):
        before = writers.get((t.src, t.piece, t.read))
        if before is not None:
            later[before].append((index, 1))
        overwrite = writers.get((t.src, t.piece, t.read + 1))
        if overwrite is not None:
            later[index].append((overwrite, 0))
        previous = writers.get((t.dst, t.piece, t.written - 1))
        if previous is not None:
            later[previous].append((index, 0 if t.reduce and transfers[previous].reduce else 1))
    rounds = [0] * len(transfers)
    queue = deque(range(len(transfers)))
    while queue:
        index = queue.popleft()
        for other, distance in later[index]:
            if rounds[other] < rounds[index] + distance:
                rounds[other] = rounds[index] + distance
                if rounds[other] > len(transfers):
                    t = transfers[other]
                    raise ScheduleError(
                        f"piece {t.piece} from gpu {t.src} to gpu {t.dst}: is received after gpu {t.src} has "
                        "overwritten what it sent, in a circle; a schedule keeps no message in between, "
                        "so this does not map"
                    )
                queue.append(other)
    return rounds
