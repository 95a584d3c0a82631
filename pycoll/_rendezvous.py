"""Ways for ranks to meet before they have a group: each gives its bytes and gets everybody's.

A rendezvous is used by all ranks alike: `all_gather` any number of times, then `close`; or `fail`, when a
rank cannot take part, so that the others learn it at once. All waits end at one deadline, with the ranks
that are missing named.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any, Protocol

from pycoll.errors import Aborted, InvalidArgument, Timeout


class Rendezvous(Protocol):
    def all_gather(self, mine: bytes) -> list[bytes]:
        """This rank's bytes for everybody's, by rank. Raises Timeout, PeerLost, Aborted."""
        ...

    def fail(self, reason: str) -> None:
        """Tells the other ranks why this one will not take part. Never raises."""
        ...

    def close(self) -> None: ...


def rank_list(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def failed(group: str, rank: int, reason: str) -> Aborted:
    return Aborted(f'group "{group}" was not made, because rank {rank} could not take part: {reason}')


class Lasting:
    """A rendezvous whose first error stays its error: the engine asks once more, to tell its own failure."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self._rendezvous = rendezvous
        self._error: BaseException | None = None

    def all_gather(self, mine: bytes) -> list[bytes]:
        if self._error is not None:
            raise self._error
        try:
            return self._rendezvous.all_gather(mine)
        except BaseException as error:
            self._error = error
            raise

    def fail(self, reason: str) -> None:
        if self._error is None:  # else the others know already
            self._rendezvous.fail(reason)

    def close(self) -> None:
        self._rendezvous.close()


class Alone:
    """The rendezvous of a group of one."""

    def all_gather(self, mine: bytes) -> list[bytes]:
        return [mine]

    def fail(self, reason: str) -> None:
        pass

    def close(self) -> None:
        pass


class ThreadMeeting:
    """Where ranks meet that are threads of this process."""

    def __init__(self, ranks: int, group: str = "default", timeout: float = 300.0) -> None:
        self.ranks = ranks
        self.group = group
        self.timeout = timeout
        self._changed = threading.Condition()
        self._rounds: list[dict[int, bytes]] = []
        self._failure: tuple[int, str] | None = None

    def of_rank(self, rank: int) -> Rendezvous:
        return _ThreadRendezvous(self, rank)

    def gather(self, rank: int, round_: int, mine: bytes) -> list[bytes]:
        with self._changed:
            while len(self._rounds) <= round_:
                self._rounds.append({})
            given = self._rounds[round_]
            given[rank] = mine
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._failure is not None or len(given) == self.ranks, self.timeout
            )
            if len(given) == self.ranks:
                return [given[r] for r in range(self.ranks)]
            if self._failure is not None:
                raise failed(self.group, *self._failure)
            missing = [r for r in range(self.ranks) if r not in given]
            raise Timeout(
                f'rank {rank} waited {self.timeout:g} s for {rank_list(missing)} while group "{self.group}" '
                "was made"
            )

    def fail(self, rank: int, reason: str) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = (rank, reason)
            self._changed.notify_all()


class _ThreadRendezvous:
    def __init__(self, meeting: ThreadMeeting, rank: int) -> None:
        self._meeting = meeting
        self._rank = rank
        self._round = 0

    def all_gather(self, mine: bytes) -> list[bytes]:
        round_, self._round = self._round, self._round + 1
        return self._meeting.gather(self._rank, round_, mine)

    def fail(self, reason: str) -> None:
        self._meeting.fail(self._rank, reason)

    def close(self) -> None:
        pass


class StoreRendezvous:
    """Over a key-value store such as torch's TCPStore: `set(key, bytes)`, `get(key)`, `wait(keys,
    timedelta)`.

    `namespace` must be new for each group that is made over one store: values are written once and stay.
    """

    _DATA, _FAILURE = b"d", b"f"

    def __init__(self, store: Any, rank: int, ranks: int, group: str, namespace: str, timeout: float) -> None:
        for method in ("set", "get", "wait"):
            if not callable(getattr(store, method, None)):
                raise InvalidArgument(
                    f"store is a {type(store).__name__} without a method {method!r}: give a "
                    "torch.distributed store"
                )
        self._store = store
        self._rank = rank
        self._ranks = ranks
        self._group = group
        self._prefix = f"pycoll/{group}/{namespace}"
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._round = 0
        self._given = -1  # the last round in which this rank's value is set

    def all_gather(self, mine: bytes) -> list[bytes]:
        round_, self._round = self._round, self._round + 1
        self._set(round_, self._DATA + mine)
        keys = [self._key(round_, rank) for rank in range(self._ranks)]
        gathered = []
        for rank, key in enumerate(keys):
            self._wait(key, keys)
            value = bytes(self._store.get(key))
            if value[:1] == self._FAILURE:
                raise failed(self._group, rank, value[1:].decode(errors="replace"))
            gathered.append(value[1:])
        return gathered

    def fail(self, reason: str) -> None:
        # Whoever waits for this rank waits for its value of the round it is in, or of the next.
        message = self._FAILURE + reason.encode()
        try:
            self._set(self._given + 1, message)
        except Exception:  # the store itself may be what failed
            return

    def close(self) -> None:
        pass

    def _key(self, round_: int, rank: int) -> str:
        return f"{self._prefix}/{round_}/{rank}"

    def _set(self, round_: int, value: bytes) -> None:
        self._given = round_
        self._store.set(self._key(round_, self._rank), value)

    def _wait(self, key: str, keys: list[str]) -> None:
        """Waits in steps, between which an interrupt gets through."""
        while True:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise Timeout(
                    f"rank {self._rank} waited {self._timeout:g} s for {self._missing(keys)} at the store "
                    "while group "
                    f'"{self._group}" was made: are all {self._ranks} ranks started, and do all make this '
                    "group?"
                )
            try:
                self._store.wait([key], timedelta(seconds=min(left, 1.0)))
                return
            except RuntimeError as error:  # torch's DistStoreError, of which each kind is one
                if "timeout" not in str(error).lower():
                    raise

    def _missing(self, keys: list[str]) -> str:
        try:
            missing = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
        except Exception:
            missing = []
        return rank_list(missing) if missing else "the other ranks"
