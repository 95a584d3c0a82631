"""Groups of torch choose by the same pins and profiles as all others."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist


def _disagreement(group) -> str:
    """What the ranks are told when they call with different counts: it names the algorithm of each."""
    with pytest.raises(dist.DistError) as caught:
        dist.all_reduce(torch.zeros(40 + dist.get_rank()), group=group)
    return str(caught.value)


def test_pins_hold(ranks):
    def body():
        os.environ["PYCOLL_ALGO"] = "allreduce:0-1k=ring"
        try:
            group = dist.new_group(list(range(4)))
        finally:
            del os.environ["PYCOLL_ALGO"]
        x = torch.full((40,), float(dist.get_rank()))
        dist.all_reduce(x, group=group)
        assert x.tolist() == [6.0] * 40
        x = torch.ones(1000)
        dist.all_reduce(x, group=group)
        assert x.tolist() == [4.0] * 1000
        said = _disagreement(group)
        assert "algorithm ring" in said
        assert "direct" not in said
        assert "algorithm direct" in _disagreement(None)
        dist.destroy_process_group(group)

    ranks(4, body)


def test_a_wrong_pin_is_said_when_the_group_is_made(ranks):
    def body():
        os.environ["PYCOLL_ALGO"] = "allreduce=rng"
        try:
            with pytest.raises(Exception, match=r"PYCOLL_ALGO: rule 1 .*there is no algorithm 'rng'"):
                dist.new_group(list(range(2)))
        finally:
            del os.environ["PYCOLL_ALGO"]

    ranks(2, body, breaks_group=True)


def test_a_profile_holds(ranks, tmp_path):
    from pycoll.selection.profile import Profile, Timing

    rows = [("direct", 2.0), ("recursive_doubling", 1.0)]
    profile = Profile.of_here(4, [Timing("allreduce", 64, "float32", way, s, s, 9) for way, s in rows])
    profile.save(tmp_path / "profile.json")

    def body(path):
        before = os.environ.get("PYCOLL_PROFILE", "")
        os.environ["PYCOLL_PROFILE"] = path
        try:
            group = dist.new_group(list(range(4)))
        finally:
            os.environ["PYCOLL_PROFILE"] = before
        x = torch.full((40,), float(dist.get_rank()))
        dist.all_reduce(x, group=group)
        assert x.tolist() == [6.0] * 40
        assert "algorithm recursive_doubling" in _disagreement(group)
        dist.destroy_process_group(group)

    ranks(4, body, str(tmp_path / "profile.json"))
