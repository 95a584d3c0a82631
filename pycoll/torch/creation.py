"""Making the backend of a group; imported at the first `init_process_group("pycoll")`."""

from __future__ import annotations

import atexit
import contextlib
import os
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from pycoll import _network
from pycoll.selection import group as selection
from pycoll.torch import Options, build, recorder
from pycoll.torch.accelerator import CUDA, Accelerator

_leaves_at_exit = False


def create(options: Any, backend_options: Any, accelerator: Accelerator = CUDA) -> dist.Backend:
    """See `pycoll.torch._create`; `accelerator` is what the backend serves beside the CPU. A failure on this
    rank is told to the others through the store, so that they raise at once an error that names it."""
    store = _keys_of_this_attempt(options.store, options.group_rank)
    try:
        wishes = _wishes(backend_options)
        decide, rules, fixed = selection.begin(options.group_rank, options.group_size, *wishes)
        timeout = options.timeout.total_seconds()
        extension = build.load(timeout)
        _leave_groups_at_exit(extension)
        backend: dist.Backend = extension.create(
            store,
            options.group_rank,
            options.group_size,
            timeout,
            options.group_id,
            decisions="",
            rules=rules,
            fixed_order=fixed,
            decide=decide,
            global_ranks=_global_ranks(options),
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


def _keys_of_this_attempt(store: Store, rank: int) -> Store:
    """A store may serve groups of one name again and again (init, destroy, init under torchrun): ranks count
    their attempts, and those of one attempt share keys that no earlier one has used."""
    store = PrefixStore("pycoll", store)
    attempt = store.add(f"attempts/{rank}", 1)
    return PrefixStore(str(attempt), store)


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
