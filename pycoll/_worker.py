"""What a process that `pycoll.spawn` starts does: meet the other ranks, run the function, report."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
import sys
import traceback
from typing import Any

from pycoll._failures import from_exit
from pycoll._frames import Closed, FrameReader, send_frame, unpack
from pycoll._pickling import dumps
from pycoll.errors import PeerLost
from pycoll.launch import FAILURE, GATHER, RESULT

_PR_SET_PDEATHSIG = 1


def main(descriptor: int) -> None:
    # An interrupt from the keyboard reaches all processes; the parent gets it and ends the ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    reader = FrameReader(connection)
    try:
        about = pickle.loads(reader.wait()[1])
        _die_with(about["parent"])
        sys.argv[:] = about["argv"]
        for stream in (sys.stdout, sys.stderr):
            # Whole lines, also under PYTHONUNBUFFERED, or the ranks' output would mix within them.
            stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
        sys.exit(_run(about, connection, reader))
    except Closed:
        sys.exit(1)  # the parent is gone; there is nobody to tell


def _run(about: dict[str, Any], connection: socket.socket, reader: FrameReader) -> int:
    from pycoll.bootstrap import make, set_default

    try:
        fn, args, kwargs = pickle.loads(reader.wait()[1])
        meeting = _ParentRendezvous(connection, reader)
        communicator = make(meeting, about["rank"], about["ranks"], about["group"], about["timeout"])
        set_default(communicator)
        result = dumps(fn(communicator, *args, **kwargs))
    except Closed:
        raise
    except BaseException as raised:
        error = from_exit(raised)
        if error is None:
            send_frame(connection, RESULT, dumps(None))
            return 0
        # The group stays open until this is said: the cause must not come after its consequences.
        send_frame(connection, FAILURE, pickle.dumps((_sendable(error), _own_traceback(error))))
        return 1
    communicator.close()
    send_frame(connection, RESULT, result)
    return 0


class _ParentRendezvous:
    """The ranks meet at the process that spawned them. It sees who fails or dies, and ends the others."""

    def __init__(self, connection: socket.socket, reader: FrameReader) -> None:
        self._connection = connection
        self._reader = reader

    def all_gather(self, mine: bytes) -> list[bytes]:
        send_frame(self._connection, GATHER, mine)
        letter, payload = self._reader.wait()
        if letter != GATHER:
            raise PeerLost("the process that spawned this rank said something unexpected")
        return unpack(payload)

    def fail(self, reason: str) -> None:
        pass

    def close(self) -> None:
        pass


def _die_with(parent: int) -> None:
    """Ends this process when the one that spawned it is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def _sendable(error: BaseException) -> bytes:
    """The error pickled; nothing for one that cannot be, or that could not be read again."""
    try:
        pickled = dumps(error)
        pickle.loads(pickled)
    except Exception:
        return b""
    return pickled


def _own_traceback(error: BaseException) -> str:
    """Without the frame of this module, which says nothing to whoever wrote the function."""
    inner = (
        error.__traceback__.tb_next
        if error.__traceback__ and error.__traceback__.tb_next
        else error.__traceback__
    )
    return "".join(traceback.format_exception(type(error), error, inner))
