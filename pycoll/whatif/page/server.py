"""The page with sliders: a server for one machine, on the loopback interface unless told otherwise.

It answers two requests: ``GET /`` is the page, ``POST /answer`` computes what the page asks for, one question
at a time; of questions that wait, only the newest is computed.
"""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pycoll.bench.workload import COLLECTIVES
from pycoll.errors import Error, InvalidArgument
from pycoll.topology import Topology
from pycoll.topology.units import format_time
from pycoll.whatif import parsing
from pycoll.whatif.changes import Change
from pycoll.whatif.compare import compare, sizes_of
from pycoll.whatif.each import each
from pycoll.whatif.evaluate import Evaluator
from pycoll.whatif.page.document import document_of
from pycoll.whatif.page.html import render
from pycoll.whatif.scenario import Scenario

__all__ = ["PageServer", "changes_of", "parse_bind", "sliders_of"]

_LONGEST = 64 << 10  # bytes of a question
_MOST_SIZES = 6
_MOST_SLIDERS = 8
#: On machines of up to so many ranks, answers have the curve and the ranked links too.
_SMALL = 16
_SIZES = ("1KiB", "64KiB", "1MiB", "25MiB", "64MiB", "256MiB", "1GiB")


def parse_bind(text: str) -> tuple[str, int]:
    """``127.0.0.1:8642``, ``[::1]:8642``, ``:8642``. Raises InvalidArgument for anything else."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([\w.-]*)):(\d{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise InvalidArgument(f"--bind {text}: write ADDRESS:PORT, such as 127.0.0.1:8642")
    return match[1] or match[2] or "127.0.0.1", int(match[3])


def changes_of(flags: str) -> list[Change]:
    """Changes as the command line writes them, in its order. Raises InvalidArgument for other flags.

    A placement is packed or interleaved: files are not read for a page.
    """
    try:
        words = shlex.split(flags)
    except ValueError as error:
        raise InvalidArgument(f"changes: {error}") from None
    given: dict[str, list[str]] = {}
    while words:
        flag, equals, value = words.pop(0).partition("=")
        if flag in parsing.FLAGS and flag != "--spread" and not equals:
            if not words:
                raise InvalidArgument(f"{flag}: of what? For example --slow tor0-tor1=0.5")
            value = words.pop(0)
        given.setdefault(flag, []).append(value)
    if any(how not in ("packed", "interleaved") for how in given.get("--place", ())):
        raise InvalidArgument("--place packed or interleaved; files are read by the command line only")
    return parsing.changes(given)


# ---- sliders


def sliders_of(topology: Topology) -> list[dict[str, Any]]:
    """A slider for the bandwidth of each sort of link, one for latency, oversubscription, a late rank,
    routing.

    Each has steps (flags of the command line), labels, and the step at which nothing is changed.
    """
    sorts = _sorts(topology)
    found = []
    factors = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0, 4.0, 8.0)
    for name in sorts[:_MOST_SLIDERS]:
        steps = [f"--slow {name}={factor:g}" for factor in factors]
        labels = [f"x{factor:g}" for factor in factors]
        found.append(_slider(f"bandwidth of {name}", steps, labels, factors.index(1.0)))
    times = (0.0, 1e-6, 5e-6, 20e-6, 100e-6, 500e-6, 2e-3, 10e-3, 50e-3)
    texts = [format_time(seconds).replace(" ", "") for seconds in times]
    steps = [" ".join(f"--latency {name}=+{text}" for name in sorts) for text in texts]
    found.append(_slider("latency of every link", steps, [f"+{text}" for text in texts], 0))
    if _oversubscribes(topology):
        ratios = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
        steps = ["", *(f"--oversubscribe {ratio:g}:1" for ratio in ratios)]
        found.append(_slider("oversubscription", steps, ["as it is", *(f"{r:g}:1" for r in ratios)], 0))
    last = len(topology.ranks) - 1
    lateness = (0.0, 10e-6, 50e-6, 200e-6, 1e-3, 5e-3, 20e-3, 100e-3, 500e-3)
    texts = [format_time(seconds).replace(" ", "") for seconds in lateness]
    name = topology.nodes[topology.ranks[last]].name
    found.append(_slider(f"{name} comes late", [f"--late {name}:{text}" for text in texts], texts, 0))
    hashes = ["", *(f"--ecmp seed={seed}" for seed in range(4))]
    found.append(_slider("routers", hashes, ["spread", *(f"hash, seed {seed}" for seed in range(4))], 0))
    return found


def _slider(text: str, steps: list[str], labels: list[str], start: int) -> dict[str, Any]:
    name = re.sub(r"\W+", "-", text)
    return {"id": f"slider-{name}", "text": text, "steps": steps, "labels": labels, "start": start}


def _sorts(topology: Topology) -> list[str]:
    """Links by the sorts of nodes that they join, ``gpu-nvswitch``; the few that join the fewest first."""
    counts: dict[tuple[str, str], int] = {}
    stems = [node.name.rpartition(".")[2].rstrip("-_0123456789") for node in topology.nodes]
    for link in topology.links:
        low, high = sorted((stems[link.source], stems[link.target]))
        counts[low, high] = counts.get((low, high), 0) + 1
    return [f"{low}-{high}" for low, high in sorted(counts, key=lambda key: counts[key]) if low and high]


def _oversubscribes(topology: Topology) -> bool:
    try:
        parsing.oversubscribe("2:1").apply(Scenario(topology))
    except Error:
        return False
    return True


# ---- the server


class PageServer(ThreadingHTTPServer):
    """Serves the page of one machine. Raises InvalidArgument where the address cannot be had."""

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        topology: Topology,
        *,
        collective: str = "allreduce",
        size: str = "64MiB",
        algorithm: str = "auto",
        flags: str = "",
    ) -> None:
        self.topology = topology
        self._first = {"collective": collective, "size": size, "algorithm": algorithm, "flags": flags}
        self._before = Evaluator(Scenario(topology))
        self._turn = threading.Lock()
        self._newest = 0
        if ":" in address[0]:
            import socket

            self.address_family = socket.AF_INET6
        try:
            super().__init__(address, _Handler)
        except OSError as error:
            raise InvalidArgument(
                f"nothing can be served at {address[0]}:{address[1]}: {error.strerror}; choose another with "
                "--bind ADDRESS:PORT"
            ) from error

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = self.server_address[:2]
        text = host.decode() if isinstance(host, bytes) else str(host)
        return f"http://{f'[{text}]' if ':' in text else text}:{port}/"

    def welcome(self, host: str) -> bool:
        """Whether a request for that host is for us: pages of elsewhere that a name server sends here are
        not."""
        name = re.sub(r":\d+$", "", host).strip("[]")
        bound = str(self.server_address[0])
        if not ipaddress.ip_address(bound).is_loopback:
            return True
        return name in (bound, "localhost", "127.0.0.1", "::1")

    def page(self) -> str:
        """The page as it first is."""
        flags = str(self._first["flags"])
        setup = {
            "sliders": sliders_of(self.topology),
            "collectives": list(COLLECTIVES),
            "algorithms": ["auto", *dict.fromkeys(self._algorithms())],
            "sizes": list(dict.fromkeys([self._first["size"], *_SIZES])),
            "example": "--fail link:NAME --late 0:5ms",
            **self._first,
            "flags": flags,
        }
        with self._turn:
            return render(self._document(self._first), setup)

    def _algorithms(self) -> list[str]:
        ways = self._before.ways(str(self._first["collective"]))
        return [way.partition("/")[0] for way in ways]

    def answer(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """The document of a question; None for one that a newer one has overtaken."""
        self._newest += 1
        mine = self._newest
        with self._turn:
            return self._document(question) if mine == self._newest else None

    def _document(self, question: dict[str, Any]) -> dict[str, Any]:
        texts = {name: question.get(name, default) for name, default in self._first.items()}
        if not all(isinstance(text, str) for text in texts.values()):
            raise InvalidArgument("a question is collective, size, algorithm and flags, each a text")
        changes = changes_of(texts["flags"])
        sizes = sizes_of(texts["size"])
        if len(sizes) > _MOST_SIZES:
            raise InvalidArgument(f"up to {_MOST_SIZES} sizes at once, not {len(sizes)}")
        collective, algorithm = texts["collective"], texts["algorithm"]
        if algorithm == "all":
            raise InvalidArgument("one algorithm, or auto")
        comparison = compare(self.topology, changes, collective, sizes, algorithm, before=self._before)
        small = len(self.topology.ranks) <= _SMALL
        harms = None
        if small:
            harms = each(self.topology, "link", collective, sizes[-1], algorithm=algorithm, changes=changes)
        return document_of(comparison, harms=harms, curve=small)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        if not self._for_us():
            return
        if self.path not in ("/", "/index.html"):
            self._send(HTTPStatus.NOT_FOUND, "text/plain", "There is one page here: /")
            return
        try:
            self._send(HTTPStatus.OK, "text/html", self.server.page())
        except Error as error:
            self._send(HTTPStatus.BAD_REQUEST, "text/plain", str(error))

    def do_POST(self) -> None:
        if not self._for_us():
            return
        length = self.headers.get("Content-Length", "")
        if self.path != "/answer" or not length.isdecimal() or int(length) > _LONGEST:
            self.close_connection = True
            self._send(HTTPStatus.BAD_REQUEST, "text/plain", "ask /answer, in few words")
            return
        # A form of another page cannot be sent as JSON without asking first.
        if self.headers.get_content_type() != "application/json":
            self.close_connection = True
            self._send(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "text/plain", "questions are JSON")
            return
        try:
            question = json.loads(self.rfile.read(int(length)))
            if not isinstance(question, dict):
                raise InvalidArgument("a question is a JSON object")
            found = self.server.answer(question)
        except (ValueError, Error) as error:
            self._send_json(HTTPStatus.BAD_REQUEST, {"error": str(error)})
            return
        if found is None:
            self._send_json(HTTPStatus.CONFLICT, {"error": "a newer question has been asked"})
            return
        self._send_json(HTTPStatus.OK, found)

    def _for_us(self) -> bool:
        if self.server.welcome(self.headers.get("Host", "")):
            return True
        self.close_connection = True
        self._send(HTTPStatus.FORBIDDEN, "text/plain", "ask by the address that the server is bound to")
        return False

    def _send_json(self, status: HTTPStatus, value: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(value, allow_nan=False))

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the page has asked something newer

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a line a slider's step helps nobody."""
