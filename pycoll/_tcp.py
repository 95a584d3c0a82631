"""A rendezvous of our own over TCP, for ranks that have nothing but an address: no torch, no launcher.

Rank 0 listens, until all ranks have come; the others connect, and keep trying until their deadline. Then
rank 0 gathers and hands out, over these connections. Who dies or gives up is known at once, by its closed
connection or its word.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import selectors
import socket
import time
from typing import Any

from pycoll._frames import Closed, FrameReader, NotOurs, pack, send_frame, unpack
from pycoll._rendezvous import Rendezvous, failed, rank_list
from pycoll.errors import Aborted, Error, InvalidArgument, PeerLost, Timeout

_HELLO, _WELCOME, _REFUSED, _CONTRADICTED, _DATA, _LOST, _FAILED, _LATE, _WHO = (
    b"H",
    b"W",
    b"R",
    b"C",
    b"D",
    b"L",
    b"F",
    b"T",
    b"?",
)
_VERSION = 1
_LONGEST_HELLO = 1 << 16
_ADDRESS_IN_USE_PATIENCE = 5.0  # seconds; a killed predecessor may still be going
_RESOLVE_PATIENCE = 10.0
_FAREWELL_PATIENCE = 1.0
# Who is turned away tries again, since whom it met may be what is left of a job before. Not for ever: two
# processes that were given one rank, or other numbers of ranks, will not come to agree.
_REFUSAL_PATIENCE = 5.0


def meet(address: str, rank: int, ranks: int, group: str, timeout: float) -> Rendezvous:
    """The rendezvous of `rank` at "host:port"."""
    host, port = parse_address(address)
    if rank == 0:
        return _Server(host, port, ranks, group, timeout)
    return _Client(host, port, rank, ranks, group, timeout)


def parse_address(address: str) -> tuple[str, int]:
    """("host", port) of "host:port", "[::1]:port" or "tcp://host:port"; InvalidArgument for anything else."""
    host, colon, port = address.removeprefix("tcp://").rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InvalidArgument(f'address is "{address}": it must be "host:port", with a port from 1 to 65535')
    return host, int(port)


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.close()


class _Server:
    """Rank 0's side."""

    def __init__(self, host: str, port: int, ranks: int, group: str, timeout: float) -> None:
        self._where = f"{host}:{port}"
        self._ranks = ranks
        self._group = group
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._peers: dict[int, FrameReader] = {}
        self._met: set[int] = set()  # also those that were lost since
        self._given: dict[int, bytes] = {}
        self._farewell: tuple[bytes, bytes] | None = None
        self._turned_away: dict[str, tuple[int, float]] = {}  # why: the rank it claimed, since when
        self._listener: socket.socket | None = self._listen(host, port)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)

    def all_gather(self, mine: bytes) -> list[bytes]:
        while len(self._given) < self._ranks - 1:
            left = self._deadline - time.monotonic()
            if left <= 0:
                self._give_up()
            self._look_for_contradiction()
            for key, _ in self._selector.select(min(left, 1.0)):
                if key.data is None:
                    self._accept()
                else:
                    self._hear(key.data)
        everybody = [mine, *(self._given[rank] for rank in range(1, self._ranks))]
        self._given = {}
        answer = pack(everybody)
        for rank, peer in self._peers.items():
            try:
                send_frame(peer.connection, _DATA, answer, self._deadline)
            except (Closed, TimeoutError):
                self._lose(rank)
        return everybody

    def fail(self, reason: str) -> None:
        self._tell(_FAILED, {"rank": 0, "text": reason})

    def close(self) -> None:
        self._await_stragglers()
        self._stop_listening()
        for key in list(self._selector.get_map().values()):
            _close(key.fileobj)  # type: ignore[arg-type]
        self._selector.close()

    def _await_stragglers(self) -> None:
        """When the group has failed, ranks that are just about to come must hear it too, and not wait for a
        rank 0 that is no longer there."""
        end = min(self._deadline, time.monotonic() + _FAREWELL_PATIENCE)
        while self._farewell and len(self._met) < self._ranks - 1 and time.monotonic() < end:
            for key, _ in self._selector.select(max(0.0, end - time.monotonic())):
                with contextlib.suppress(Error):
                    if key.data is None:
                        self._accept()
                    else:
                        self._hear(key.data)

    def _listen(self, host: str, port: int) -> socket.socket:
        patience = min(self._deadline, time.monotonic() + _ADDRESS_IN_USE_PATIENCE)
        while True:
            try:
                return _bind(host, port)
            except OSError as error:
                if error.errno == errno.EADDRINUSE and time.monotonic() < patience:
                    time.sleep(0.05)
                    continue
                why = str(error)
                if error.errno == errno.EADDRINUSE:
                    why = "another job or service does; choose another port (MASTER_PORT)"
                raise Error(f"rank 0 cannot listen at {self._where} for the others: {why}") from error

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # gone before it was heard
        self._selector.register(connection, selectors.EVENT_READ, FrameReader(connection, _LONGEST_HELLO))

    def _hear(self, reader: FrameReader) -> None:
        """Takes all that a connection has said so far."""
        while reader.connection.fileno() >= 0:
            rank = next((r for r, peer in self._peers.items() if peer is reader), None)
            try:
                message = reader.read()
            except (Closed, NotOurs):
                self._drop(reader)
                if rank is not None:
                    del self._peers[rank]
                    self._lose(rank)
                return
            if message is None:
                return
            if rank is None:
                self._welcome(reader, *message)
            else:
                self._obey(rank, reader, *message)

    def _obey(self, rank: int, reader: FrameReader, letter: bytes, payload: bytes) -> None:
        if letter == _DATA:
            self._given[rank] = payload
        elif letter == _FAILED:
            reason = json.loads(payload)["text"]
            self._tell(_FAILED, {"rank": rank, "text": reason}, but=rank)
            raise failed(self._group, rank, reason)
        elif letter == _LATE:
            text = json.loads(payload)["text"]
            self._tell(_LATE, {"rank": rank, "text": text}, but=rank)
            raise Timeout(text)
        elif letter == _WHO:
            with contextlib.suppress(Closed, TimeoutError):
                send_frame(
                    reader.connection, _WHO, json.dumps(self._missing()).encode(), time.monotonic() + 1
                )

    def _drop(self, reader: FrameReader) -> None:
        self._selector.unregister(reader.connection)
        _close(reader.connection)

    def _welcome(self, reader: FrameReader, letter: bytes, payload: bytes) -> None:
        """Takes a connection's first message: from a rank of this group, or from somebody else."""
        try:
            hello: dict[str, Any] = json.loads(payload) if letter == _HELLO else {}
            rank = int(hello["rank"])
            refusal = self._refusal(hello, rank)
            contradicts = (hello["pycoll"], hello["group"]) == (_VERSION, self._group)
        except (ValueError, TypeError, KeyError):
            rank, refusal, contradicts = 0, "this is a pycoll rendezvous", False
        with contextlib.suppress(Closed, TimeoutError):
            if not refusal:
                reader.longest = 1 << 30
                self._peers[rank] = reader
                self._met.add(rank)
                send_frame(reader.connection, _WELCOME, b"", time.monotonic() + 1)
                if self._farewell:
                    send_frame(reader.connection, *self._farewell, time.monotonic() + 1)
                if len(self._met) == self._ranks - 1:
                    self._stop_listening()
                return
            self._turned_away.setdefault(refusal, (rank if contradicts else 0, time.monotonic()))
            answer = _CONTRADICTED if contradicts else _REFUSED
            send_frame(reader.connection, answer, refusal.encode(), time.monotonic() + 1)
        self._drop(reader)

    def _refusal(self, hello: dict[str, Any], rank: int) -> str:
        theirs = (hello["pycoll"], hello["group"], hello["ranks"])
        if theirs != (_VERSION, self._group, self._ranks):
            return (
                f'rank {rank} wants to join group "{theirs[1]}" of {theirs[2]} ranks (protocol '
                f"{theirs[0]}), but at "
                f'{self._where} there meets group "{self._group}" of {self._ranks} ranks (protocol '
                f"{_VERSION})"
            )
        if not 0 < rank < self._ranks:
            return f"rank {rank} is not between 1 and {self._ranks - 1}"
        if rank in self._met:
            return f"there are two processes that call themselves rank {rank} at {self._where}"
        return ""

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._selector.unregister(self._listener)
            _close(self._listener)
            self._listener = None

    def _missing(self) -> list[int]:
        return [rank for rank in range(1, self._ranks) if rank not in self._given]

    def _lose(self, rank: int) -> None:
        text = f'rank {rank} was lost (it exited or was killed) while group "{self._group}" was made'
        self._tell(_LOST, {"rank": rank, "text": text}, but=rank)
        raise PeerLost(text)

    def _look_for_contradiction(self) -> None:
        """Somebody claims to be a rank that is missing, but was turned away for long: it has given up."""
        for refusal, (rank, since) in self._turned_away.items():
            if rank in self._missing() and time.monotonic() > since + _REFUSAL_PATIENCE + 1:
                self._tell(_FAILED, {"rank": rank, "text": refusal})
                raise failed(self._group, rank, refusal)

    def _give_up(self) -> None:
        text = (
            f"{rank_list(self._missing())} did not come to {self._where} within {self._timeout:g} s, while "
            "group "
            f'"{self._group}" of {self._ranks} ranks was made'
        )
        if self._turned_away:
            text += "; turned away: " + "; ".join(self._turned_away)
        self._tell(_LATE, {"rank": 0, "text": text})
        raise Timeout(text)

    def _tell(self, letter: bytes, what: dict[str, Any], but: int = 0) -> None:
        if self._farewell:
            return  # the first failure is the group's
        self._farewell = (letter, json.dumps(what).encode())
        for rank, peer in self._peers.items():
            if rank != but:
                with contextlib.suppress(Closed, TimeoutError):
                    send_frame(peer.connection, *self._farewell, time.monotonic() + 1)


class _Client:
    """The other ranks' side."""

    def __init__(self, host: str, port: int, rank: int, ranks: int, group: str, timeout: float) -> None:
        self._where = f"{host}:{port}"
        self._rank = rank
        self._ranks = ranks
        self._group = group
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._tried: dict[str, str] = {}
        self._refusal = ""  # what rank 0 last said, if it was reached
        self._contradicted_since: float | None = None
        self._reader = self._connect(host, port)

    def all_gather(self, mine: bytes) -> list[bytes]:
        with contextlib.suppress(Closed, TimeoutError):  # what rank 0 said before it closed says more
            send_frame(self._reader.connection, _DATA, mine, self._deadline)
        try:
            letter, payload = self._reader.wait(self._deadline)
        except (Closed, NotOurs) as error:
            raise PeerLost(
                f'rank 0 was lost (it exited or was killed) while group "{self._group}" was made at '
                f"{self._where}"
            ) from error
        except TimeoutError:
            late = self._late()
            self._say(_LATE, str(late))  # to rank 0, whose clock may run a little later
            raise late from None
        if letter == _DATA:
            return unpack(payload)
        raise self._told(letter, payload)

    def fail(self, reason: str) -> None:
        self._say(_FAILED, reason)

    def _say(self, letter: bytes, text: str) -> None:
        with contextlib.suppress(Closed, TimeoutError):
            send_frame(
                self._reader.connection, letter, json.dumps({"text": text}).encode(), time.monotonic() + 1
            )

    def close(self) -> None:
        _close(self._reader.connection)

    def _told(self, letter: bytes, payload: bytes) -> Error:
        said = json.loads(payload)
        if letter == _FAILED:
            return failed(self._group, said["rank"], said["text"])
        kind = {_LOST: PeerLost, _LATE: Timeout}.get(letter, Aborted)
        return kind(said["text"])

    def _late(self) -> Error:
        """The error at the deadline; rank 0 knows who is missing, where it is there at all."""
        text = (
            f"rank {self._rank} waited {self._timeout:g} s while group "
            f'"{self._group}" was made at {self._where}'
        )
        try:
            send_frame(self._reader.connection, _WHO, b"", time.monotonic() + 1)
            letter, payload = self._reader.wait(time.monotonic() + 1)
            if letter != _WHO:
                return self._told(letter, payload)
            return Timeout(f"{text}; missing: {rank_list(json.loads(payload))}")
        except (Closed, NotOurs, TimeoutError):
            return Timeout(f"{text}; rank 0 is there but does not answer")

    def _connect(self, host: str, port: int) -> FrameReader:
        resolve_until = min(self._deadline, time.monotonic() + _RESOLVE_PATIENCE)
        pause = 0.01
        while True:
            try:
                addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError as error:
                if time.monotonic() >= resolve_until:
                    raise Error(
                        f'rank {self._rank} cannot find rank 0, because "{host}" is no name of a host '
                        f"({error}): check "
                        "MASTER_ADDR"
                    ) from error
                addresses = []
            for family, _, _, _, address in addresses:
                reader = self._try(family, address)
                if reader is not None:
                    return reader
            since = self._contradicted_since
            if since is not None and time.monotonic() > since + _REFUSAL_PATIENCE:
                raise InvalidArgument(f"{self._refusal}; check RANK and WORLD_SIZE of all processes")
            if time.monotonic() >= self._deadline:
                tried = "; ".join(f"{where}: {why}" for where, why in self._tried.items())
                if self._refusal:
                    tried += f". It was reached, but said: {self._refusal}"
                raise Timeout(
                    f'rank {self._rank} did not reach rank 0 of group "{self._group}" at {self._where} '
                    "within "
                    f"{self._timeout:g} s: is rank 0 started, and the address right? Tried {tried}"
                )
            time.sleep(min(pause, max(0.0, self._deadline - time.monotonic())))
            pause = min(pause * 1.5, 0.25)

    def _try(self, family: int, address: Any) -> FrameReader | None:
        where = f"{address[0]} port {address[1]}"
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(max(0.01, min(5.0, self._deadline - time.monotonic())))
            connection.connect(address)
            if connection.getsockname() == connection.getpeername():
                raise OSError("nobody listens")  # a port of the ephemeral range, connected to itself
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            hello = {"pycoll": _VERSION, "group": self._group, "rank": self._rank, "ranks": self._ranks}
            send_frame(connection, _HELLO, json.dumps(hello).encode(), self._deadline)
            reader = FrameReader(connection, 1 << 30)
            # Rank 0 answers as soon as it is at its rendezvous; if it never gets there the deadline ends
            # this.
            letter, payload = reader.wait(self._deadline)
            if letter == _WELCOME:
                return reader
            turned_away = letter in (_REFUSED, _CONTRADICTED)
            if turned_away:
                self._refusal = payload.decode(errors="replace")
            if letter != _CONTRADICTED:
                self._contradicted_since = None
            elif self._contradicted_since is None:
                self._contradicted_since = time.monotonic()
            self._tried[where] = "turned away" if turned_away else "not a pycoll rendezvous"
        except (OSError, Closed, NotOurs) as error:
            self._tried[where] = str(error) or type(error).__name__
        _close(connection)
        return None


def _bind(host: str, port: int) -> socket.socket:
    """A listener for connections to `host`.

    On the address itself where it is a literal one of this machine: a job of one host then listens on
    loopback only. A name may resolve to loopback here and to another interface elsewhere, so that one means
    all interfaces.
    """
    if host == "localhost" or _is_literal(host):
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                return _listener(family, address)
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096)
    return _listener(socket.AF_INET, ("", port))


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _listener(family: int, address: Any) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(4096)
    except OSError:
        listener.close()
        raise
    return listener
