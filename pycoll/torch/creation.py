"""Making the backend of a group; imported at the first `init_process_group("pycoll")`."""

from __future__ import annotations

import atexit
import contextlib
import os
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from pycoll import _network
from pycoll.errors import InvalidArgument
from pycoll.selection import group as selection
from pycoll.torch import Options, build, recorder
from pycoll.torch.accelerator import CUDA, Accelerator

_leaves_at_exit = False
_worlds_keys = "pycoll-world"  # where groups meet; another world has others


def create(options: Any, backend_options: Any, accelerator: Accelerator = CUDA) -> dist.Backend:
    """See `pycoll.torch._create`; `accelerator` is what the backend serves beside the CPU. A failure on this
    rank is told to the others through the store, so that they raise at once an error that names it."""
    members = _global_ranks(options)
    store, notes = _meeting_place(options, members)
    try:
        wishes = _wishes(backend_options)
        decide, rules, fixed = selection.begin(options.group_rank, options.group_size, *wishes)
        if notes is not None:
            _agree_on_order(store, members)
        timeout = options.timeout.total_seconds()
        extension = build.load(timeout)
        _leave_groups_at_exit(extension)
        backend: dist.Backend = extension.create(
            store,
            notes,
            options.group_rank,
            options.group_size,
            timeout,
            options.group_id,
            decisions="",
            rules=rules,
            fixed_order=fixed,
            decide=decide,
            global_ranks=members,
            new_world=not dist.is_initialized(),
            accelerator=accelerator,
            **_network.settings(_host_of(options.store), timeout)._asdict(),
        )
    except BaseException as error:
        _tell_others(store, options.group_rank, error)
        raise
    return backend


def _wishes(backend_options: Any) -> tuple[Any, bool | None, Any]:
    """(profile, deterministic, topology) of `pg_options`."""
    if backend_options is None:
        return None, None, None
    if not isinstance(backend_options, Options):
        raise ValueError(
            "the pycoll backend's pg_options are a pycoll.torch.Options, not a "
            f"{type(backend_options).__name__}"
        )
    return backend_options.profile, backend_options.deterministic, backend_options.topology


def _global_ranks(options: Any) -> list[int]:
    """The ranks in torch's world, by rank of the group; none where they are not known."""
    if options.global_ranks_in_group:
        return list(options.global_ranks_in_group)
    if not dist.is_initialized():  # this group is to be the world
        return list(range(options.group_size))
    return []


def _host_of(store: Store) -> str:
    """The host that all ranks can reach, since its store is there; "" where there is none."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    host = getattr(store, "host", None)  # of a TCPStore
    return str(host or os.environ.get("MASTER_ADDR", ""))


def _meeting_place(options: Any, members: list[int]) -> tuple[Store, Store | None]:
    """(keys of the making of this one group; of a group within a world, keys of that world).

    torch numbers groups by what each process has made before, so that ranks that make them in other orders,
    or only some of them, have one name for different groups, or several for one. Here a group is known by
    its members, and by how many they have made before.
    """
    global _worlds_keys
    if options.global_ranks_in_group and dist.is_initialized():
        # A world that was shrunk numbers its ranks anew, in the same store.
        keys = f"{_worlds_keys}-of-{dist.get_world_size()}"
        world = PrefixStore(keys, dist.distributed_c10d._get_default_store())
        group = PrefixStore("group-" + "-".join(map(str, sorted(members))), world)
        return _keys_of_this_attempt(group, dist.get_rank())[0], world
    store, attempt = _keys_of_this_attempt(PrefixStore("pycoll", options.store), options.group_rank)
    if not dist.is_initialized():
        _worlds_keys = f"pycoll-world-{attempt}"
    return store, None


def _agree_on_order(store: Store, members: list[int]) -> None:
    """torch lets a group have an order of its own (`sort_ranks=False`); ranks that differ in it would take
    each other's places."""
    own = f"rank {dist.get_rank()} of the world makes it of ranks {members}"
    first = store.compare_set("order", "", own).decode()
    if first.partition("[")[2] != own.partition("[")[2]:
        raise InvalidArgument(
            f"the ranks give the group's members in different orders: {first}, but {own}; give one on all"
        )


def _keys_of_this_attempt(store: Store, rank: int) -> tuple[Store, int]:
    """A store may serve groups of one name again and again (init, destroy, init under torchrun): ranks count
    their attempts, and those of one attempt share keys that no earlier one has used."""
    attempt = store.add(f"attempts/{rank}", 1)
    return PrefixStore(str(attempt), store), attempt


def _tell_others(store: Store, rank: int, error: BaseException) -> None:
    with contextlib.suppress(Exception):  # the store may be what failed
        if not store.check(["failed"]):
            store.set("failed", f"{rank}: {type(error).__name__}: {error}")


def _leave_groups_at_exit(extension: Any) -> None:
    """A process that never destroys its groups still leaves them before the interpreter goes: their threads
    may be running callbacks in Python."""
    global _leaves_at_exit
    if not _leaves_at_exit:
        atexit.register(extension.shutdown_all)
        atexit.register(recorder.dump_after_failure)  # runs before
        _leaves_at_exit = True
