"""Runs a function on several ranks, without a launcher: each rank a process of its own, or a thread of this
one."""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pycoll._calls import Duration, seconds
from pycoll._failures import Failures, RankEnded
from pycoll._frames import Closed, FrameReader, NotOurs, pack, send_frame
from pycoll._rendezvous import rank_list
from pycoll._thread_ranks import Threads
from pycoll.errors import Error, InvalidArgument, PeerLost, Timeout

# Messages between spawn and its ranks.
GATHER, RESULT, FAILURE = b"G", b"R", b"F"

# The ranks' own program. The path first, so that pycoll is the one that spawned them.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[2].split(':'); "
    "from pycoll._worker import main; main(int(sys.argv[1]))"
)

# When a rank fails, others fail in consequence, and may be heard first. How long a consequence waits for its
# cause.
_CAUSE_PATIENCE = 1.0
_TERMINATE_PATIENCE = 1.0


def spawn(
    fn: Callable[..., Any],
    ranks: int = 2,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: Duration | None = None,
    threads: bool = False,
    *,
    group: str = "default",
    deadline: Duration | None = None,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """Calls `fn(comm, *args, **kwargs)` on `ranks` ranks, and returns what they returned, by rank.

    Each rank is a fresh Python process, to which `fn` is sent by value if need be: lambdas, and functions of
    a notebook or of the main program, work, and no `if __name__ == "__main__"` is needed. Its environment
    has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT too, so that
    torch.distributed can start in it.

    Args:
        timeout: seconds (or a timedelta) that a collective may take, and making the group. Default: 300.
        threads: run the ranks as threads of this process instead. Quick to start, but under one GIL, and
            what one rank breaks is broken for all.
        group: the group's name in errors.
        deadline: seconds for everything; then all ranks are ended and Timeout raised. Default: none.
        env: environment variables for the ranks, besides the inherited ones. Not with threads.

    Raises:
        What the first failing rank raised, with the rank's own traceback as its cause; the other ranks are
            ended at once. Errors that are only another rank's consequence never hide the first one.
        PeerLost: a rank was killed by a signal, or exited without returning; the text names rank and signal.
        Timeout: `deadline` passed; the text names the ranks that had not ended.
    """
    limit = 300.0 if timeout is None else seconds(timeout)
    end = seconds(deadline)
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise InvalidArgument(f"spawn: ranks is {ranks!r}: it must be a positive number")
    if not callable(fn):
        raise InvalidArgument(f"spawn: fn is a {type(fn).__name__}, which cannot be called")
    if limit is None:
        raise InvalidArgument("spawn: timeout must be a number of seconds or a timedelta")
    keywords = dict(kwargs or {})
    if threads:
        if env:
            raise InvalidArgument("spawn: threads share one environment: env needs processes")
        return Threads(fn, ranks, tuple(args), keywords, limit, group, end).run()
    with _Processes(ranks, group, end) as processes:
        processes.start(fn, tuple(args), keywords, limit, env or {})
        return processes.run()


class _Child:
    def __init__(self, rank: int, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self.rank = rank
        self.process = process
        self.connection = connection
        self.reader = FrameReader(connection)
        self.given: bytes | None = None  # to the present all-gather
        self.result: Any = None
        self.said_result = False
        self.over = False


class _Processes:
    """The parent's side of ranks that are processes."""

    def __init__(self, ranks: int, group: str, deadline: float | None) -> None:
        self._ranks = ranks
        self._group = group
        self._limit = deadline
        self._deadline = None if deadline is None else time.monotonic() + deadline
        self._children: list[_Child] = []
        self._failures = Failures(ranks)
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_all()
        self._selector.close()

    def start(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float,
        env: Mapping[str, str],
    ) -> None:
        from pycoll._pickling import dumps

        try:
            function = dumps((fn, args, kwargs))
        except Exception as error:
            raise InvalidArgument(
                f"spawn: fn or its arguments cannot be sent to another process ({error}); a Communicator, a "
                "lock or an "
                "open file cannot: make it inside fn"
            ) from error
        about = {
            "ranks": self._ranks,
            "group": self._group,
            "timeout": timeout,
            "argv": sys.argv,
            "parent": os.getpid(),
        }
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")
        }
        port = _free_port()
        for rank in range(self._ranks):
            ours, theirs = socket.socketpair()
            numbers = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(self._ranks),
                "LOCAL_WORLD_SIZE": str(self._ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), ":".join(sys.path)],
                    pass_fds=[theirs.fileno()],
                    env={**inherited, **numbers, **env},
                )
            child = _Child(rank, process, ours)
            self._children.append(child)
            self._selector.register(ours, selectors.EVENT_READ, child)
            with contextlib.suppress(Closed):
                send_frame(ours, RESULT, pickle.dumps({**about, "rank": rank}))
                send_frame(ours, RESULT, function)

    def run(self) -> list[Any]:
        while not all(child.over for child in self._children) and not self._decided():
            self._check_deadline()
            for key, _ in self._selector.select(0.1):
                self._hear(key.data)
            for child in self._children:
                self._check_life(child)
        if self._failures:
            cause = self._failures.cause()
            if isinstance(cause, RankEnded):
                raise PeerLost(*cause.args)
            raise cause
        return [child.result for child in self._children]

    def _decided(self) -> bool:
        if not self._failures:
            return False
        return self._failures.has_cause() or time.monotonic() > self._failures.first_heard + _CAUSE_PATIENCE

    def _check_deadline(self) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            late = [child.rank for child in self._children if not child.over]
            raise Timeout(f"spawn: {rank_list(late)} of {self._ranks} had not ended after {self._limit:g} s")

    def _hear(self, child: _Child) -> None:
        """Takes all that a rank has said so far."""
        try:
            while (message := child.reader.read()) is not None:
                self._obey(child, *message)
        except (Closed, NotOurs):
            self._selector.unregister(child.connection)
            child.connection.close()

    def _obey(self, child: _Child, letter: bytes, payload: bytes) -> None:
        if letter == GATHER:
            child.given = payload
            given = [other.given for other in self._children if other.given is not None]
            if len(given) == self._ranks:
                answer = pack(given)
                for other in self._children:
                    other.given = None
                    with contextlib.suppress(Closed):
                        send_frame(other.connection, GATHER, answer)
        elif letter == RESULT:
            child.said_result = True
            try:
                child.result = pickle.loads(payload)
            except Exception as error:
                self._failures.add(
                    child.rank,
                    Error(f"spawn: what rank {child.rank} returned cannot be read here: {error!r}"),
                )
        elif letter == FAILURE:
            child.said_result = True
            self._failures.add(child.rank, *_read_failure(child.rank, payload))

    def _check_life(self, child: _Child) -> None:
        code = child.process.poll()
        if code is None or child.over:
            return
        if child.connection.fileno() >= 0:
            self._hear(child)  # its last words
        child.over = True
        if code < 0:
            how = f"was killed by {_signal_name(-code)}"
            if child.said_result:
                how = f"returned, and then {how} while it exited"
        elif not child.said_result:
            how = f"exited with code {code} before it returned"
        else:
            return
        if not self._failures.has_cause():
            self._failures.add(child.rank, RankEnded(f"rank {child.rank} of {self._ranks} {how}"))

    def _end_all(self) -> None:
        alive = [child.process for child in self._children if child.process.poll() is None]
        for process in alive:
            process.terminate()
        patience = time.monotonic() + _TERMINATE_PATIENCE
        for process in alive:
            try:
                process.wait(max(0.0, patience - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for child in self._children:
            child.connection.close()


def _read_failure(rank: int, payload: bytes) -> tuple[BaseException, str]:
    pickled, text = pickle.loads(payload)
    try:
        error = pickle.loads(pickled)
        if isinstance(error, BaseException):
            return error, text
    except Exception:
        pass  # its class cannot be had here; the text says all
    return Error(f"rank {rank} raised an error that cannot be sent to another process:\n{text}"), text


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
