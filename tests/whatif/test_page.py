"""The page: its document holds what was simulated, its HTML needs nothing from elsewhere, and in a browser it
shows no number that is not in the document."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pycoll.cli import app
from pycoll.topology import Topology
from pycoll.whatif import Fail, Late, Oversubscribe, Slow, Workload, compare, each, iterate, scale, sweep
from pycoll.whatif.iteration import Steps
from pycoll.whatif.page import document_of, render

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    changes = [Fail("node:h7"), Slow("tor0-tor1", 0.5), Late(2, 0.001)]
    comparison = compare("two_racks", changes, sizes="64KiB,1MiB", algorithm="ring")
    work = Workload.from_yaml("layers: [{name: a, count: 3, backward: 1 ms, parameters: [1000000]}]")
    steps = Steps(iterate("two_racks", work), iterate("two_racks", work, changes), ("--fail node:h7",))
    return document_of(
        comparison,
        harms=each("two_racks", size="1MiB", changes=[Slow("tor0-tor1", 0.5)]),
        sweep=sweep("two_racks", "tor0-tor1=0.25,1", size="1MiB"),
        steps=steps,
        scale=scale("two_racks", "2,4,8", size="1MiB", changes=[Late(7, 0.001)]),
    )


def test_the_picture_shows_loads_and_what_is_gone(document: dict[str, Any]) -> None:
    before, after = document["picture"]["before"], document["picture"]["after"]
    assert [node["name"] for node in before["nodes"]] == [*(f"h{i}" for i in range(8)), "tor0", "tor1"]
    assert [(node["x"], node["y"]) for node in after["nodes"] if node["name"] == "h3"] == [
        (node["x"], node["y"]) for node in before["nodes"] if node["name"] == "h3"
    ]
    states = {cable["name"]: cable["state"] for cable in after["cables"]}
    assert {name for name, state in states.items() if state} == {"h7-tor1", "tor0-tor1"}
    assert (states["h7-tor1"], states["tor0-tor1"]) == ("gone", "changed")
    outcome = compare("two_racks", [], sizes="1MiB", algorithm="ring").rows[0].before
    assert outcome is not None
    number = [cable["name"] for cable in before["cables"]].index("tor0-tor1")
    shown = before["loads"][1]["cables"][number]
    assert shown == [round(outcome.loads[f"tor{i}->tor{1 - i}"], 4) for i in (0, 1)]


def test_a_timeline_has_every_transfer() -> None:
    machine = Topology.flat(2, 1e9, latency=1e-3)
    found = document_of(compare(machine, [], sizes=2_000_000, algorithm="ring/2"), curve=False)
    line = found["timelines"][0]["before"]
    rows = line["transfers"]
    assert sorted(zip(rows["src"], rows["dst"], rows["start_s"], rows["end_s"], strict=True)) == [
        (0, 1, 0.0, 0.001), (0, 1, 0.002, 0.003), (1, 0, 0.0, 0.001), (1, 0, 0.002, 0.003),
    ]  # fmt: skip
    assert rows["bytes"] == 1_000_000
    first, second = rows["critical"]
    assert (rows["dst"][first], rows["end_s"][second]) == (rows["src"][second], 0.003)
    assert line["time_s"] == pytest.approx(0.004)
    # A link is busy for half of the time: all of a part, or nothing of it.
    for link in line["links"]:
        assert link["busy"] == pytest.approx(0.5)
        assert math.fsum(link["over_time"]) / len(link["over_time"]) == pytest.approx(0.5, abs=1e-3)


def test_many_transfers_become_what_is_sent_over_time() -> None:
    found = document_of(compare("two_racks", [], sizes="1GiB", algorithm="ring/1024"), curve=False)
    line = found["timelines"][0]["before"]
    assert line["transfers"] is None
    sent = line["sent"]
    for rank in range(8):  # each sends 7/4 of the whole buffer
        shares = math.fsum(sent["kept"][rank]) + math.fsum(sent["added"][rank])
        assert shares * sent["most_bytes_per_s"] * line["part_s"] == pytest.approx(7 / 4 * 2**30, rel=1e-2)


def test_large_machines_are_drawn_by_groups() -> None:
    found = document_of(
        compare("hgx-h100-16-fat", [], sizes="1MiB", algorithm="double_binary_tree"),
        timelines=False,
        curve=False,
    )
    nodes = found["picture"]["before"]["nodes"]
    assert sum(node["stands_for"] for node in nodes) == len(Topology.load("hgx-h100-16-fat").nodes)
    assert len(nodes) <= 110
    assert max(found["picture"]["before"]["loads"][0]["inside"]) > 0


def test_the_page_needs_nothing_from_elsewhere(document: dict[str, Any]) -> None:
    page = render(document)
    embedded = re.search(r'<script type="application/json" id="document">(.*?)</script>', page)
    assert embedded is not None
    assert json.loads(embedded[1]) == document
    outside = page.replace(embedded[0], "").replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+|\bsrc=|@import|url\(", outside) == []


def test_the_command_writes_the_page_and_prints_its_json(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    flags = ["two_racks", "--slow", "tor0-tor1=0.5", "-s", "64KiB", "-a", "ring", "--html", str(file)]
    done = CliRunner().invoke(app, ["whatif", *flags, "--json"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert printed["harms"]["each"] == "link"
    assert render(printed) == file.read_text()
    done = CliRunner().invoke(app, ["whatif", *flags[:-1], str(tmp_path / "none" / "page.html")])
    assert "No such file" in str(done.exception)


class _Shown(HTMLParser):
    """Numbers with their paths, and all other text that is to be read."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[tuple[str, str, float, str]] = []
        self.words: list[str] = []
        self._open: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "input", "br", "wbr"):
            self._open.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self._open]
        tag, attributes = self._open[-1] if self._open else ("", {})
        if tag == "data":
            self.numbers.append(
                (
                    str(attributes["data-path"]),
                    str(attributes["data-kind"]),
                    float(attributes["value"] or "nan"),
                    data,
                )
            )
        elif not {"script", "style", "title"} & set(tags) and attributes.get("class") != "tick":
            self.words += data.split()


_SCALE = {
    "s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "GB/s": 1e9,
    "%": 0.01, "x": 1, "": 1,
}  # fmt: skip


def _read(text: str) -> float:
    match = re.fullmatch(r"([+\u2212]?)([\d.,]+)\s*(\S*)", text)
    assert match is not None, text
    value = float(match[2].replace(",", "")) * _SCALE[match[3]]
    return value if not match[1] else 1 + value if match[1] == "+" else 1 - value


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for each_ in value.values() for text in _strings(each_)]
    if isinstance(value, list):
        return [text for each_ in value for text in _strings(each_)]
    return [value.replace("->", "\u2192")] if isinstance(value, str) else []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the page in")
def test_every_number_shown_is_in_the_document(document: dict[str, Any], tmp_path: Path) -> None:
    assert CHROMIUM is not None
    page = tmp_path / "page.html"
    page.write_text(render(document))
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"),
        *("--virtual-time-budget=5000", "--enable-logging=stderr", "--dump-dom", page.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert "Uncaught" not in done.stderr
    shown = _Shown()
    shown.feed(done.stdout)
    for section in ("answer", "machine", "timeline", "curve", "sweep", "scale", "harm", "step", "numbers"):
        assert f'<section id="{section}"' in done.stdout
    assert len(shown.numbers) > 40
    assert "steps.after.waiting_s" in [path for path, *_ in shown.numbers]
    for path, kind, value, text in shown.numbers:
        found: Any = document
        for key in path.split("."):
            found = len(found) if key == "length" else found[int(key) if isinstance(found, list) else key]
        assert value == pytest.approx(found, rel=1e-12), path
        if text == "unchanged":
            assert found == pytest.approx(1, abs=6e-4)
        else:
            assert _read(text) == pytest.approx(found, rel=0.06 if kind == "share" else 0.01, abs=1e-12), path
    known = "\n".join(_strings(document))
    assert [
        word for word in shown.words if re.search(r"\d", word) and word.strip(",:;.()") not in known
    ] == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to open the page in")
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_of_the_screen(document: dict[str, Any], tmp_path: Path, width: int) -> None:
    assert CHROMIUM is not None
    (tmp_path / "page.html").write_text(render(document))
    frame = tmp_path / "frame.html"
    frame.write_text(
        f"""<iframe src="page.html" style="width:{width}px;height:900px;border:0"></iframe><script>
        onload = () => {{
          const page = document.querySelector("iframe").contentDocument;
          const out = [...page.querySelectorAll(".now, .was, .why, main p, main code")].filter((each) =>
            each.getBoundingClientRect().right > {width} || each.scrollWidth > each.clientWidth + 1);
          const texts = out.map((each) => each.textContent).join(", ");
          document.title = `wide ${{page.documentElement.scrollWidth}}, out: ${{texts}}.`;
        }};
        </script>"""
    )
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"),
        *("--allow-file-access-from-files", "--hide-scrollbars", "--window-size=1400,1000"),
        *("--virtual-time-budget=5000", "--dump-dom", frame.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert f"<title>wide {width}, out: .</title>" in done.stdout


def test_steps_as_csv(document: dict[str, Any]) -> None:
    work = Workload.from_yaml("layers: [{name: a, backward: 1 ms, parameters: [1000000]}]")
    steps = Steps(iterate("two_racks", work), iterate("two_racks", work, [Oversubscribe(2.0)]))
    assert [row["side"] for row in steps.flat()] == ["before", "after"]
    assert steps.to_csv().startswith("side,workload,topology,what,collective,bytes,ready,start,end\n")
