"""`pycoll schedule simulate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import pycoll
from pycoll import cli


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """command(*arguments): exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["pycoll", "schedule", "simulate", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        return exit_.value.code or 0, out, err

    return run


def test_it_prints_what_python_does(command) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = command("ring", "-t", "two_racks", "--size", "64MiB", "--late", "3=200ms")
    topology = pycoll.Topology.load("two_racks")
    schedule = pycoll.build("ring", ranks=8, topology=topology)
    start = [0, 0, 0, 0.2, 0, 0, 0, 0]
    assert (code, out) == (0, f"{schedule.simulate(topology, 64 << 20, start=start)}\n")


def test_json_and_a_picture(command, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("matplotlib")
    picture = tmp_path / "timeline.svg"
    arguments = ["hierarchical", "-t", "dgx-h100", "-n", "4", "-s", "1GiB", "-p", "group=2", "--hash", "7"]
    code, out, err = command(*arguments, "--json", "--draw", str(picture))
    assert code == 0
    result = json.loads(out)
    assert (result["algorithm"], result["ranks"], result["routing"]) == ("hierarchical", 4, "hash")
    assert (result["seed"], result["size_bytes"]) == (7, 1 << 30)
    assert err == f"wrote {picture}\n"
    assert "<svg" in picture.read_text()


def test_a_file_and_a_barrier(command, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "mine.json"
    pycoll.build("direct", collective="barrier", ranks=8).save(path)
    code, out, _ = command(str(path), "-t", "two_racks")
    assert code == 0
    assert "direct: barrier, 8 ranks" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ring", "-t", "nowhere"], "nowhere"),
        (["ring", "-t", "two_racks", "-n", "9"], "--ranks 9: two racks of four hosts has 8"),
        (["ring", "-t", "two_racks", "--late", "8=1ms"], "--late 8=1ms: write RANK=TIME, RANK below 8"),
        (["ring", "-t", "two_racks", "--late", "3"], "--late 3: write RANK=TIME"),
        (["ring", "-t", "two_racks", "--late", "3=soon"], "soon"),
        (["ring", "-t", "two_racks", "--size", "much"], "much"),
        (["rings", "-t", "two_racks"], "there is no algorithm 'rings'"),
    ],
)
def test_refusals_are_one_sentence(command, arguments: list[str], message: str) -> None:  # type: ignore[no-untyped-def]
    code, out, err = command(*arguments)
    assert code in (1, 2)
    assert message in err
    assert out == ""
    assert "Traceback" not in err
