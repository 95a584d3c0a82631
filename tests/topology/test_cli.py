"""`pycoll topo`, and pictures."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from pycoll import Topology
from pycoll.cli import main
from pycoll.topology.summary import summarize

SAMPLES = Path(__file__).parent / "samples"


def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: object
) -> tuple[int, str, str]:
    """Exit code, standard output, standard error of `pycoll topo ...`."""
    monkeypatch.setattr(sys, "argv", ["pycoll", "topo", *map(str, words)])
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as left:
        main()
    out, err = capsys.readouterr()
    return int(left.value.code or 0), out, err


@pytest.fixture
def topo(capsys, monkeypatch):  # type: ignore[no-untyped-def]
    return lambda *words: run(capsys, monkeypatch, *words)


def test_list(topo) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = topo("list")
    assert code == 0
    assert re.search(r"^hgx-h100-128-rail +1,024 +128 HGX H100 servers", out, re.MULTILINE)
    rows = json.loads(topo("list", "--json")[1])
    assert {"name", "title", "ranks", "about", "file"} == set(rows[0])


def test_show_is_a_tree(topo) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = topo("show", "two_racks")
    assert code == 0
    lines = out.splitlines()
    assert "tor[0-1]  2 switches" in lines
    assert "├── among each other  1 link  1 Gbit/s  30 us" in lines
    assert "└── h[0-7]  8 devices, ranks 0-7  8 links, 1 a h, 4 a tor  1 Gbit/s  30 us" in lines
    out = topo("show", "hgx-h100-128-rail")[1]
    assert (
        "su[0-3].leaf[0-7]  32 switches  1,024 links, 32 a leaf, 64 a spine  48 GB/s  200 ns  uplink" in out
    )
    assert "su[0-3].s[0-31].gpu[0-7] (above)" in out  # at the NVSwitches


def test_show_json_has_every_node_and_link(topo) -> None:  # type: ignore[no-untyped-def]
    shown = json.loads(topo("show", "two_racks", "--json")[1])
    assert len(shown["nodes"]) == 10
    assert shown["nodes"][0]["copy_rate"] is None
    assert len(shown["links"]) == 18
    assert shown["links"][0] == {
        "source": 0,
        "target": 8,
        "bandwidth": 1.25e8,
        "latency": 3e-05,
        "kind": "",
        "name": "h0->tor0",
    }
    assert shown["ranks"] == list(range(8))


def test_show_yaml_writes_the_file_out(topo) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = topo("show", "dgx-1v", "--yaml", "--first", 4)
    assert code == 0
    assert len(Topology.from_yaml(out).ranks) == 4


def test_check_says_what_is_right(topo) -> None:  # type: ignore[no-untyped-def]
    code, out, err = topo("check", "two_racks", "wan-pair")
    assert (code, err) == (0, "")
    assert "two racks of four hosts: 8 ranks, 8 devices, 2 switches, 9 links" in out
    assert "slowest link east.router->west.router, 1 Gbit/s; longest east.router->west.router, 20 ms" in out


def test_check_says_what_is_wrong(topo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    text = Topology.load("two_racks").to_yaml()
    apart = tmp_path / "apart.yaml"
    apart.write_text(text.replace("  - {between: [tor0, tor1], bandwidth: 1 Gbit/s, latency: 30 us}\n", ""))
    code, out, err = topo("check", apart)
    assert code == 1
    assert f"wrong: {apart}: the ranks fall into 2 parts" in err
    assert "h[0-3] | h[4-7]" in err
    assert "valid" not in out
    typo = tmp_path / "typo.yaml"
    typo.write_text(text.replace("tor0, tor1", "tor0, tor3"))
    code, _, err = topo("check", "dgx-h100", typo)
    assert code == 1
    assert f"wrong: {typo}:13:22: links[2].between[1]: there is no node 'tor3'" in err
    verdicts = json.loads(topo("check", "dgx-h100", typo, "--json")[1])
    assert [verdict["valid"] for verdict in verdicts] == [True, False]
    assert topo("check", "no-such-machine")[0] == 1


def test_check_says_what_is_odd(topo, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    odd = tmp_path / "odd.yaml"
    odd.write_text(
        'pycoll: 1\nname: odd\nnodes: [{name: "a[0-3]"}, {name: "s[0-2]", kind: switch}]\nlinks:\n'
        '  - {between: ["a[0-2]", s0], bandwidth: 1 GB/s, latency: 0 s}\n'
        "  - {between: [s0, s1], bandwidth: 1 GB/s, latency: 0 s}\n"
        "  - {from: a0, to: a1, bandwidth: 1 GB/s, latency: 0 s}\n"
        'ranks: ["a[0-1]"]\n'
    )
    code, out, _ = topo("check", odd)
    assert code == 0
    assert "odd: a3, s2 have no link" in out
    assert "odd: s1 leads nowhere: one neighbour only" in out
    assert "odd: a[2-3] are devices without a rank" in out
    assert "odd: a0->a1 has no way back of the same bandwidth and latency" in out


def test_import(topo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    target = tmp_path / "server.yaml"
    code, out, _ = topo("import", SAMPLES / "h100.txt", "-o", target)
    assert code == 0
    assert out.startswith(f"wrote {target}: 8 GPUs (h100)")
    assert len(Topology.load(target).ranks) == 8
    assert len(Topology.from_yaml(topo("import", "--here")[1]).ranks) >= 1
    with (SAMPLES / "nccl-h100.xml").open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert len(Topology.from_yaml(topo("import", "-")[1]).ranks) == 8
    assert len(json.loads(topo("import", SAMPLES / "pcie.txt", "--gpu", "l40s", "--json")[1])["ranks"]) == 8


def test_bound(topo) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = topo("bound", "two_racks", "dgx-1v", "--no-best", "--size", "1MiB")
    assert code == 0
    assert "allreduce of 1 MiB" in out
    assert re.search(r"^two_racks +8 +1[0-9.]+ ms +proved", out, re.MULTILINE)
    row = json.loads(topo("bound", "two_racks", "--size", "1GiB", "--json")[1])[0]
    assert row["seconds"] == pytest.approx(2 * 7 / 8 * 2**30 / 1.25e8, rel=1e-3)  # the ports' bound
    assert row["proved_tight"] is True
    assert row["through"] == "tor0->h[0-3], tor1->h[4-7]"
    assert 0.9 < row["share"] <= 1
    assert topo("bound", "two_racks", "--collective", "nonsense")[0] == 2


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("import",), 2, "give either a file"),
        (("import", "--here", "x"), 2, "give either a file"),
        (("import", "/no/such/file"), 1, "/no/such/file cannot be read: No such file"),
        (("import", __file__), 1, "neither `nvidia-smi topo -m`"),
        (("show", "dgx-h10"), 1, "did you mean dgx-h100?"),
    ],
)
def test_what_makes_no_sense(topo, words: tuple[str, ...], code: int, says: str) -> None:  # type: ignore[no-untyped-def]
    left, _, err = topo(*words)
    assert left == code
    assert says in err


@pytest.mark.parametrize(
    "name",
    ["two_racks", "dgx-1v", "mi300x-8", "torus-8x8", "torus-4x4x4", "hgx-h100-4-rail", "hgx-h100-128-rail"],
)
def test_pictures(name: str, tmp_path: Path) -> None:
    topology = Topology.load(name)
    figure = topology.draw(tmp_path / "picture.png", dpi=40)
    assert (tmp_path / "picture.png").stat().st_size > 1000
    words = {text.get_text() for text in figure.axes[0].texts}
    assert topology.name in words
    if len(topology.nodes) <= 110:
        assert sum("rank" in word or word.isdecimal() for word in words) >= len(topology.ranks)
    else:
        assert any(word.startswith("spine[0-15]") for word in words)


def test_a_summary_counts_every_link_once() -> None:
    for name in ("dgx-1v", "hgx-h100-16-fat-4to1", "torus-4x4x4", "server-2s"):
        topology = Topology.load(name)
        summary = summarize(topology)
        assert sum(links.links for links in summary.links) * 2 == len(topology.links)
        assert sorted(i for group in summary.groups for i in group.members) == list(
            range(len(topology.nodes))
        )
