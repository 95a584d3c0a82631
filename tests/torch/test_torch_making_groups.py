"""Groups that overlap, made in any order and from any thread: a group is known by its members, and by how
many of these members were made before."""

from __future__ import annotations

import re
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

PAIRS = [[0, 1], [2, 3], [0, 2], [1, 3], [0, 3], [1, 2]]
LIMIT = timedelta(seconds=20)


def mine(lists):
    return [members for members in lists if dist.get_rank() in members]


def works(group, members):
    """Whether the group consists of those members, told apart by their contributions."""
    everyones = [torch.zeros(2, dtype=torch.int64) for _ in members]
    dist.all_gather(everyones, torch.tensor([dist.get_rank(), dist.get_rank(group)]), group=group)
    return [t.tolist() for t in everyones] == [[rank, place] for place, rank in enumerate(members)]


def test_disjoint_groups_made_at_once(ranks):
    """While the halves make theirs, each again and again, nobody waits for the other half."""

    def body():
        halves = [[0, 1], [2, 3]]
        if dist.get_rank() < 2:
            for _ in range(3):  # so that the halves have made unequal numbers of groups
                group = dist.new_group([0, 1], use_local_synchronization=True, timeout=LIMIT)
                assert works(group, [0, 1])
        [members] = mine(halves)
        group = dist.new_group(members, use_local_synchronization=True, timeout=LIMIT)
        assert works(group, members)
        across = [[0, 2], [1, 3]]
        [members] = mine(across)  # whose members have made unequal numbers of groups
        group = dist.new_group(members, use_local_synchronization=True, timeout=LIMIT)
        assert works(group, members)
        group = dist.new_group([0, 1, 2, 3], use_local_synchronization=True, timeout=LIMIT)
        assert works(group, [0, 1, 2, 3])

    ranks(4, body, breaks_group=True)


@pytest.mark.parametrize("local", [False, True])
def test_overlapping_groups_in_other_orders(ranks, local):
    def body():
        # Three rounds of pairs: within a round they are disjoint, so that ranks may swap these.
        orders = [PAIRS, [PAIRS[1], PAIRS[0], PAIRS[3], PAIRS[2], PAIRS[5], PAIRS[4]]]
        for _ in range(2):
            order = orders[dist.get_rank() in (2, 3)]
            groups = []
            for members in mine(order) if local else order:
                groups.append(dist.new_group(members, use_local_synchronization=local, timeout=LIMIT))
            for members, group in zip(mine(order) if local else order, groups, strict=True):
                if dist.get_rank() in members:
                    assert works(group, members), members

    ranks(4, body, breaks_group=True)


@pytest.mark.parametrize("local", [False, True])
def test_threads_make_groups_at_once(ranks, local):
    """Each thread its own, overlapping those of others: in another order on every rank."""

    def body():
        me = dist.get_rank()
        failures = []

        def make(members):
            try:
                for _ in range(2):
                    group = dist.new_group(members, use_local_synchronization=local, timeout=LIMIT)
                    if me in members and not works(group, members):
                        failures.append(f"the group of {members} has other members")
            except BaseException as error:
                failures.append(f"{members}: {type(error).__name__}: {error}")

        lists = [*PAIRS, [0, 1, 2], [1, 2, 3], [0, 1, 2, 3]]
        lists = lists[me:] + lists[:me]
        threads = [
            threading.Thread(target=make, args=(members,), daemon=True)
            for members in (mine(lists) if local else lists)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
        assert not failures, "\n".join(failures)
        assert not any(thread.is_alive() for thread in threads)

    ranks(4, body, breaks_group=True)


def test_ranks_that_wait_in_a_circle_are_told_who_waits_for_whom(ranks):
    def body():
        me = dist.get_rank()
        limit = 3.0
        dist.barrier()
        start = time.monotonic()
        with pytest.raises(dist.DistBackendError) as caught:  # the right neighbour is busy with its own
            dist.new_group(
                [me, (me + 1) % 4], use_local_synchronization=True, timeout=timedelta(seconds=limit)
            )
        assert limit - 0.1 < time.monotonic() - start < limit + 10
        return str(caught.value)

    for me, text in enumerate(ranks(4, body, breaks_group=True)):
        assert "timed out" in text
        assert "make them in the same order on all" in text
        others = [(me + step) % 4 for step in (1, 2, 3)]
        for other in others:
            after = (other + 1) % 4
            pair = ", ".join(map(str, sorted([other, after])))
            assert f"rank {other} waits for rank {after} to make a group of ranks {pair}" in text, (me, text)


def test_a_rank_that_does_not_make_the_group_is_named(ranks):
    def body():
        me = dist.get_rank()
        if me == 3:
            time.sleep(2)
        if me != 1:
            return None
        with pytest.raises(dist.DistBackendError) as caught:
            dist.new_group([1, 3], use_local_synchronization=True, timeout=timedelta(seconds=0.7))
        return str(caught.value)

    text = ranks(4, body, breaks_group=True)[1]
    assert re.search(r"timed out after .* waiting for rank 1 \(of the world: 3\)", text), text
    assert "does it call new_group, with the same ranks?" in text


def test_ranks_that_order_a_group_differently_are_told(ranks):
    def body():
        me = dist.get_rank()
        group = dist.new_group([1, 0], sort_ranks=False, timeout=LIMIT)
        assert works(group, [1, 0])
        with pytest.raises((ValueError, dist.DistBackendError), match=r"in different orders") as caught:
            dist.new_group([0, 1] if me else [1, 0], sort_ranks=False, timeout=LIMIT)
        assert "rank 0 of the world makes it of ranks [1, 0]" in str(caught.value)
        assert "rank 1 of the world makes it of ranks [0, 1]" in str(caught.value)

    ranks(2, body, breaks_group=True)


def test_groups_of_a_world_that_was_shrunk_or_made_anew(ranks, tmp_path):
    """Ranks are numbered anew, and groups counted anew, in the same store."""

    def body(store):
        me = dist.get_rank()
        assert works(dist.new_group([1, 2], timeout=LIMIT), [1, 2]) or me not in (1, 2)
        if me == 1:
            return
        dist.shrink_group([1])
        members = [1, 2]  # once 2 and 3
        group = dist.new_group(members, timeout=LIMIT)
        assert dist.get_rank() not in members or works(group, members)
        dist.destroy_process_group()

    def again(store, count):
        import os

        me = int(os.environ["RANK"])
        for _ in range(2):
            dist.init_process_group(
                "pycoll", store=dist.FileStore(store, 3), rank=me, world_size=3, timeout=LIMIT
            )
            for members in ([0, 1], [1, 2])[: count if me == 1 else 2]:
                if me in members:
                    group = dist.new_group(members, use_local_synchronization=True, timeout=LIMIT)
                    assert works(group, members)
            dist.destroy_process_group()

    def leave_and_again(store):
        dist.destroy_process_group()
        again(store, 2)

    ranks(4, body, str(tmp_path / "unused"), breaks_group=True)
    ranks(3, leave_and_again, str(tmp_path / "store"), breaks_group=True)
