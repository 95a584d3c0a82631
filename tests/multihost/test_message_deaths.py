"""Messages between hosts whose peer dies or stops."""

from __future__ import annotations

import os
import signal
import time

import numpy as np

import pycoll

SOON = 10.0  # asserted, in seconds, where 1 s is promised: machines are busy


def ending_of(call):
    """(class, text, seconds) of how the call ended."""
    begin = time.monotonic()
    try:
        call()
    except pycoll.Error as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return "nothing", "", time.monotonic() - begin


def only_what_needs_the_dead(comm):
    comm.barrier()
    if comm.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank == 1:
        comm.recv(np.zeros(1), 0, tag=2)  # when rank 0 knows
        comm.send(np.full(300_000, 7.0), 0, tag=3)
        return None
    others = comm.recv(got := np.zeros(300_000), 1, tag=3, async_=True)
    from_any = comm.recv(np.zeros(300_000), None, tag=9, async_=True)
    received = ending_of(lambda: comm.recv(np.zeros(5), 2, tag=1))
    sent = ending_of(lambda: comm.send(np.zeros(1 << 20), 2, tag=1))
    comm.send(np.ones(1), 1, tag=2)
    others.result()
    return received, sent, ending_of(from_any.result), float(got.min())


def test_only_what_needs_the_dead_rank_ends(start_hosts):
    outcomes = start_hosts(3, only_what_needs_the_dead).outcomes()
    assert outcomes[1].error == "", outcomes[1]
    received, sent, from_any, least = outcomes[0].value or (outcomes[0],) * 4
    for kind, text, seconds in (received, sent):
        assert kind == "PeerLost", text
        assert "rank 2 on host" in text
        assert "tag 1" in text
        assert seconds < SOON
    assert least == 7.0
    # Rank 1 leaves when it has sent: then there is nobody.
    assert from_any[0] == "PeerLost", from_any
    assert "all other ranks have left the group or died" in from_any[1]


def dies_sending(comm):
    comm.barrier()
    if comm.rank == 1:
        comm.send(np.zeros(1 << 23), 0, tag=4, async_=True)  # 64 MiB, of which a second brings 6
        comm.recv(np.zeros(1), 0)
        os.kill(os.getpid(), signal.SIGKILL)
    work = comm.recv(np.ones(1 << 23), 1, tag=4, async_=True)
    comm.send(np.zeros(1), 1)
    return ending_of(work.result)


def test_killed_in_the_midst_of_a_message(start_hosts, labs):
    slow = labs.make(hosts=2, rate="50mbit")
    outcome = start_hosts(slow, dies_sending).outcomes()[0]
    kind, text, seconds = outcome.value or ("", outcome, 0)
    assert kind == "PeerLost", text
    assert "recv of 67108864 bytes from rank 1, tag 4: rank 1 on host" in text
    assert seconds < SOON


def stops(comm):
    comm.barrier()
    if comm.rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    peer = 2 if comm.rank == 0 else 0
    return ending_of(lambda: comm.recv(np.zeros(10), peer, tag=5))


def test_stopped_peer_is_named_at_the_deadline(start_hosts):
    job = start_hosts(3, stops, timeout=4.0)
    outcomes = [job.outcome(rank, 60) for rank in (0, 1)]
    kind, text, seconds = outcomes[0].value or ("", outcomes[0], 0)
    assert kind == "Timeout", text
    assert "rank 2 on host" in text or "rank 0 on host" in text  # whichever of the two was first
    assert 3.0 < seconds < 4.0 + SOON
    assert outcomes[1].value[0] == "Timeout", outcomes[1]
