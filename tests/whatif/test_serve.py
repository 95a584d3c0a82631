"""The page with sliders: what the server answers, and whom it refuses."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pycoll.errors import InvalidArgument
from pycoll.topology import Topology
from pycoll.whatif import Flows, Late, Slow, apply, compare
from pycoll.whatif.page.server import PageServer, changes_of, parse_bind, sliders_of
from pycoll.whatif.scenario import Scenario

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    made = PageServer(("127.0.0.1", 0), Topology.load("two_racks"), size="64KiB", algorithm="ring")
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join(60)


def ask(server: PageServer, method: str, path: str, body: str = "", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=120)
    connection.request(method, path, body or None, {"Content-Type": "application/json", **headers})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def question(server: PageServer, **asked: Any) -> tuple[int, dict[str, Any]]:
    status, text = ask(server, "POST", "/answer", json.dumps(asked))
    return status, json.loads(text)


def test_the_page_has_sliders(server: PageServer) -> None:
    status, text = ask(server, "GET", "/")
    assert status == 200
    assert '"sliders":[{"id":"slider-bandwidth-of-tor-tor"' in text


def test_an_answer_is_what_compare_says(server: PageServer) -> None:
    status, found = question(server, size="1MiB", algorithm="ring", flags="--slow tor-tor=0.5 --late 3:5ms")
    assert status == 200
    expected = compare("two_racks", [Slow("tor-tor", 0.5), Late("3", 0.005)], sizes="1MiB", algorithm="ring")
    assert found["comparison"] == json.loads(json.dumps(expected.to_dict()))
    assert found["harms"]["each"] == "link"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"flags": "--fail link:nothing"}, "no link of topology"),
        ({"flags": "--explode now"}, "there is no change '--explode'"),
        ({"flags": "--place /etc/passwd"}, "packed or interleaved"),
        ({"flags": "--slow"}, "of what?"),
        ({"size": "much"}, "is not understood"),
        ({"size": "1KiB:1GiB"}, "up to 6 sizes"),
        ({"flags": 3}, "each a text"),
        ({"algorithm": "rings"}, "there is no algorithm 'rings'"),
    ],
)
def test_refusals(server: PageServer, asked: dict[str, Any], message: str) -> None:
    status, found = question(server, **asked)
    assert status == 400
    assert message in found["error"]


def test_others_are_turned_away(server: PageServer) -> None:
    assert ask(server, "GET", "/", Host="evil.example")[0] == 403
    assert ask(server, "GET", "/etc/passwd")[0] == 404
    assert ask(server, "POST", "/answer", "{}", **{"Content-Type": "text/plain"})[0] == 415
    assert ask(server, "POST", "/answer", "not JSON")[0] == 400
    assert ask(server, "POST", "/answer", "x" * 70_000)[0] == 400


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the page in")
def test_a_slider_changes_the_page(
    server: PageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CHROMIUM is not None
    page = server.page()
    moved = """<script>
      const slider = document.getElementById("slider-bandwidth-of-tor-tor");
      slider.value = 5;
      slider.dispatchEvent(new Event("input"));
    </script></body>"""
    monkeypatch.setattr(server, "page", lambda: page.replace("</body>", moved))
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"),
        *("--virtual-time-budget=20000", "--dump-dom", server.url),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert "<li>--slow tor-tor=0.5</li>" in done.stdout
    assert '<output for="slider-bandwidth-of-tor-tor">x0.5</output>' in done.stdout


@pytest.mark.parametrize("name", ["two_racks", "hgx-h100-4-fat", "torus-8x8", "dgx-h100"])
def test_every_step_of_every_slider_is_a_change(name: str) -> None:
    topology = Topology.load(name)
    for slider in sliders_of(topology):
        assert len(slider["steps"]) == len(slider["labels"])
        for step in slider["steps"]:
            apply(Scenario(topology), changes_of(step))


def test_flags_and_addresses() -> None:
    assert changes_of("--late=3:5ms --flows 2 --slow 'a*=0.5'") == [
        Slow("a*", 0.5), Late("3", 0.005), Flows(2),
    ]  # fmt: skip
    assert parse_bind(":80") == ("127.0.0.1", 80)
    assert parse_bind("[::1]:8642") == ("::1", 8642)
    for wrong in ("", "host", "1.2.3.4:99999", "a b:3"):
        with pytest.raises(InvalidArgument, match="write ADDRESS:PORT"):
            parse_bind(wrong)
    with (
        PageServer(("127.0.0.1", 0), Topology.flat(2, 1e9)) as first,
        pytest.raises(InvalidArgument, match="choose another with --bind"),
    ):
        PageServer(("127.0.0.1", first.server_address[1]), Topology.flat(2, 1e9))
