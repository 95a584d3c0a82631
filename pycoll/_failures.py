"""Which of several ranks' errors is the cause, and which are consequences."""

from __future__ import annotations

import time

from pycoll.errors import Aborted, Error, PeerLost, Timeout


class RankTraceback(Exception):
    """Where on its rank an error came from: the cause (`__cause__`) of what `spawn` raises."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return self.text


class Failures:
    """What went wrong on which rank, and which of it came first."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._errors: list[tuple[int, BaseException, str]] = []  # rank, error, its traceback there
        self.first_heard = 0.0

    def __bool__(self) -> bool:
        return bool(self._errors)

    def add(self, rank: int, error: BaseException, text: str = "") -> None:
        if not self._errors:
            self.first_heard = time.monotonic()
        self._errors.append((rank, error, text))

    def has_cause(self) -> bool:
        return any(self._weight(error) == 0 for _, error, _ in self._errors)

    def cause(self) -> BaseException:
        """The error to raise: a cause before its consequences, then the first."""
        rank, error, text = min(self._errors, key=lambda entry: self._weight(entry[1]))
        if text:
            error.__cause__ = RankTraceback(f"\n--- on rank {rank} of {self._ranks} ---\n{text.rstrip()}")
        note = f"(raised on rank {rank} of {self._ranks})"
        if hasattr(error, "add_note"):
            error.add_note(note)
        return error

    @staticmethod
    def _weight(error: BaseException) -> int:
        """0 for what can only be a cause; more, the more likely it is a consequence."""
        if isinstance(error, RankEnded):
            return 0
        consequences = {Timeout: 1, Aborted: 2, PeerLost: 3}
        return next((weight for kind, weight in consequences.items() if isinstance(error, kind)), 0)


def from_exit(raised: BaseException) -> BaseException | None:
    """What a rank's function ended with. sys.exit() is a return; with a code it is an error, since the exit
    that it asks for must not become the parent's."""
    if not isinstance(raised, SystemExit):
        return raised
    if raised.code in (None, 0):
        return None
    return Error(f"a rank called sys.exit({raised.code!r})").with_traceback(raised.__traceback__)


class RankEnded(PeerLost):
    """A rank ended without a word. Raised as a plain PeerLost."""
