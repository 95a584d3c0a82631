"""How a process finds the other ranks: `pycoll.init`, and the default group that it makes."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pycoll import _network, _tcp, launchers
from pycoll._calls import Duration, seconds
from pycoll._rendezvous import Alone, Lasting, Rendezvous, StoreRendezvous
from pycoll.communicator import Communicator
from pycoll.errors import Error, InvalidArgument, Timeout
from pycoll.selection import group as selection


class _Defaults(threading.local):
    """The default group: of the process, or of one thread where ranks are threads."""

    of_process: Communicator | None = None  # shared: lives on the class
    of_thread: Communicator | None = None


_defaults = _Defaults()
_groups_made: dict[tuple[str, int], int] = {}
_groups_lock = threading.Lock()


def init(
    timeout: Duration = 300.0,
    group: str = "default",
    *,
    rank: int | None = None,
    ranks: int | None = None,
    address: str | None = None,
    store: Any = None,
    profile: Any = None,
    topology: Any = None,
    deterministic: bool | None = None,
) -> Communicator:
    """Makes a group of all ranks that call this alike, and returns this rank's communicator of it.

    Without further arguments the environment says who is who, on one host or many, as torchrun, Slurm's srun
    and the MPI launchers set it (docs/hosts.md has the variables): RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    before all others. A process for which no launcher has set anything is a group of one rank. No torch is
    needed, except under torchrun, whose agent keeps a torch store at that address.

    PYCOLL_IFNAME pins the network interface, PYCOLL_LANES the number of connections a pair of ranks,
    PYCOLL_SILENCE the seconds without a sign of life after which a peer on another host is lost.

    Args:
        timeout: seconds (or a timedelta) that a collective may take, and making the group too.
        group: a name for errors. Groups made at one address at the same time must have different names.
        rank, ranks: this rank and how many there are, instead of the environment's. With either `address` or
        `store`. address: "host:port" at which rank 0 listens while the group is made.
        store: a torch.distributed store, or anything with its `set`, `get` and `wait`.
        profile: what `pycoll tune` measured, by which the group chooses algorithms: a file or a
            `pycoll.Profile`; False for none. Default: PYCOLL_PROFILE's, else this machine's own, if it was
            tuned. Rank 0's counts.
        topology: of what the ranks run on: a topology file, the name of a bundled one, or a
            `pycoll.Topology`; False for none. The group then chooses by simulation on it, with each rank
            on the device that is named like its host. Default: PYCOLL_TOPOLOGY's. Rank 0's counts.
        deterministic: add in rank order always: the same bits for any size, buffer layout and run. Default:
            PYCOLL_DETERMINISTIC. PYCOLL_ALGO pins algorithms (see docs/selector.md). Both must be the same
            on all ranks.

    The first group that a process makes is its default one, until it is closed: `pycoll.empty` uses it.

    Raises:
        InvalidArgument: the environment is incomplete, contradicts itself or holds a setting that makes no
            sense, or the arguments do not go together; or the topology does not fit the group.
        TopologyError: the topology file is none, or its ranks cannot reach each other.
        Timeout: not all ranks came in time; the text names those that did not, and what was tried.
        PeerLost, Aborted: another rank died, or raised, while the group was made; the text names it.
    """
    limit = seconds(timeout)
    if limit is None:
        raise InvalidArgument("init: timeout must be a number of seconds or a timedelta")
    if (rank is None) != (ranks is None):
        raise InvalidArgument("init: give rank and ranks together, or neither")
    if address is not None and store is not None:
        raise InvalidArgument("init: give address or store, not both")
    if rank is None or ranks is None:
        here = launchers.place()
        rank, ranks = here.rank, here.ranks
        if address is None and store is None and ranks > 1:
            address = launchers.meeting_point(here)
            store = _torch_store(rank, ranks, limit)
    if ranks < 1 or not 0 <= rank < ranks:
        raise InvalidArgument(f"init: rank {rank} of {ranks} ranks: ranks go from 0 to ranks - 1")
    network = _network.settings(_network.host_of(address) or os.environ.get("MASTER_ADDR", ""), limit)
    meeting = _rendezvous(rank, ranks, group, limit, address, store)
    communicator = make(meeting, rank, ranks, group, limit, profile, deterministic, network, topology)
    current = _Defaults.of_process
    if current is None or current.closed:
        _Defaults.of_process = communicator
    return communicator


def empty(shape: int | Sequence[int], dtype: Any = "float32") -> Any:
    """`Communicator.empty` of the default group: an array in shared memory, which collectives need not copy.

    Raises InvalidArgument when there is no default group yet.
    """
    return default_group("empty").empty(shape, dtype)


def default_group(caller: str) -> Communicator:
    """The group that `pycoll.init` made first. Raises InvalidArgument, for `caller`, when there is none."""
    group = _defaults.of_thread or _Defaults.of_process
    if group is None or group.closed:
        raise InvalidArgument(f"{caller}: there is no group yet: call pycoll.init first")
    return group


def set_default(communicator: Communicator, *, of_thread: bool = False) -> None:
    """Makes a group the one that `pycoll.empty` uses, in this process or in this thread only."""
    if of_thread:
        _defaults.of_thread = communicator
    else:
        _Defaults.of_process = communicator


def make(
    meeting: Rendezvous,
    rank: int,
    ranks: int,
    group: str,
    timeout: float,
    profile: Any = None,
    deterministic: bool | None = None,
    network: _network.Settings | None = None,
    topology: Any = None,
) -> Communicator:
    """A communicator by way of a rendezvous. A failure here is told to the other ranks at once."""
    meeting = Lasting(meeting)
    try:
        decide, rules, fixed = selection.begin(rank, ranks, profile, deterministic, topology)
        return Communicator.create(
            rank, ranks, meeting.all_gather, group, timeout, None, rules, network, fixed, decide
        )
    except BaseException as error:
        meeting.fail(f"{type(error).__name__}: {error}")
        raise
    finally:
        meeting.close()


def _rendezvous(
    rank: int, ranks: int, group: str, timeout: float, address: str | None, store: Any
) -> Rendezvous:
    if ranks == 1:
        return Alone()
    if store is not None:
        return StoreRendezvous(store, rank, ranks, group, _namespace(group, rank), timeout)
    if address is None:
        raise InvalidArgument(
            f"init: rank {rank} of {ranks} does not know where the ranks meet: set MASTER_ADDR and "
            "MASTER_PORT, or give "
            'address="host:port" or store='
        )
    return _tcp.meet(address, rank, ranks, group, timeout)


def _namespace(group: str, rank: int) -> str:
    """A name for the group's keys that is new, and that all ranks choose alike: they make groups in the same
    order."""
    with _groups_lock:
        number = _groups_made.get((group, rank), 0)
        _groups_made[group, rank] = number + 1
    return f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}.{number}"


def _torch_store(rank: int, ranks: int, timeout: float) -> Any:
    """The store that torch or torchrun already keeps at the environment's address, which is then not ours to
    listen at.

    None where there is none.
    """
    if (
        os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        and importlib.util.find_spec("torch") is not None
    ):
        return _torchrun_store(timeout)
    return _torch_default_store(rank, ranks)


def _torchrun_store(timeout: float) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    try:
        return TCPStore(host, port, is_master=False, timeout=timedelta(seconds=timeout))
    except RuntimeError as error:
        kind = Timeout if "timed out" in str(error) or "timeout" in str(error) else Error
        raise kind(f"init: torchrun's store at {host}:{port} cannot be reached: {error}") from error


def _torch_default_store(rank: int, ranks: int) -> Any:
    """The store of torch's process group, when it has been made and is of the same ranks: its port is in
    use."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if (distributed.get_rank(), distributed.get_world_size()) != (rank, ranks):
        return None
    return distributed.distributed_c10d._get_default_store()
