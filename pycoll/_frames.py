"""Length-prefixed messages over a stream socket: one letter, eight bytes of length, the payload."""

from __future__ import annotations

import selectors
import socket
import struct
import time

_HEADER = struct.Struct("!cQ")


class Closed(Exception):
    """The other side closed the connection, or died."""


class NotOurs(Exception):
    """The other side does not speak this protocol."""


def send_frame(
    connection: socket.socket, letter: bytes, payload: bytes = b"", deadline: float | None = None
) -> None:
    """Sends one message. Raises Closed when the other side is gone, TimeoutError at `deadline`
    (time.monotonic)."""
    try:
        connection.settimeout(None if deadline is None else max(0.01, deadline - time.monotonic()))
        connection.sendall(_HEADER.pack(letter, len(payload)) + payload)
    except TimeoutError:
        raise
    except OSError as error:
        raise Closed(str(error)) from error


class FrameReader:
    """Takes messages off a socket as they come."""

    def __init__(self, connection: socket.socket, longest: int = 1 << 40) -> None:
        self.connection = connection
        self.longest = longest
        self._buffer = bytearray()
        self._wanted = _HEADER.size

    def read(self) -> tuple[bytes, bytes] | None:
        """One message, or None as long as it is not all there. Reads at most once, so call it when there is
        something to read, and again after each message. Raises Closed, NotOurs."""
        message = self._take()
        if message is not None:
            return message
        self.connection.setblocking(False)
        try:
            received = self.connection.recv(max(1 << 16, min(self._wanted - len(self._buffer), 1 << 24)))
        except (BlockingIOError, InterruptedError):
            return None
        except OSError as error:
            raise Closed(str(error)) from error
        if not received:
            raise Closed("connection closed")
        self._buffer += received
        return self._take()

    def wait(self, deadline: float | None = None) -> tuple[bytes, bytes]:
        """The next message. Raises Closed, NotOurs, and TimeoutError at `deadline`."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.connection, selectors.EVENT_READ)
            while True:
                message = self.read()
                if message is not None:
                    return message
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError
                selector.select(left)

    def _take(self) -> tuple[bytes, bytes] | None:
        if len(self._buffer) < _HEADER.size:
            return None
        letter, length = _HEADER.unpack_from(self._buffer)
        if length > self.longest:
            raise NotOurs(f"a message of {length} bytes")
        self._wanted = _HEADER.size + length
        if len(self._buffer) < self._wanted:
            return None
        payload = bytes(memoryview(self._buffer)[_HEADER.size : self._wanted])
        del self._buffer[: self._wanted]
        return letter, payload


def pack(parts: list[bytes]) -> bytes:
    """Several byte strings as one."""
    return b"".join([struct.pack("!Q", len(parts)), *(struct.pack("!Q", len(part)) + part for part in parts)])


def unpack(packed: bytes) -> list[bytes]:
    (count,) = struct.unpack_from("!Q", packed)
    parts, at = [], 8
    for _ in range(count):
        (length,) = struct.unpack_from("!Q", packed, at)
        parts.append(packed[at + 8 : at + 8 + length])
        at += 8 + length
    return parts
