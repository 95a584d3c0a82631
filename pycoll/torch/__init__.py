"""The torch.distributed backend "pycoll".

    torch.distributed.init_process_group("pycoll")

needs no import of pycoll: torch calls `autoload` through the entry point group `torch.backends`. Importing
this module imports neither torch nor anything compiled, since it happens within the user's `import torch`.
"""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch.distributed as dist

    from pycoll.lateness import StragglerReport
    from pycoll.torch.gpu_memory import mem_pool, share_pool
    from pycoll.torch.hooks import ddp_hook
    from pycoll.torch.recorder import dump_flight_recorder, flight_recorder

__all__ = [
    "Options", "autoload", "ddp_hook", "dump_flight_recorder", "flight_recorder", "mem_pool", "register",
    "share_pool", "stragglers",
]  # fmt: skip


@dataclass
class Options:
    """What `init_process_group("pycoll", pg_options=...)` and `new_group` take, as `pycoll.init` has them:

    topology: a topology file, the name of a bundled one, or a `pycoll.Topology`; False for none. Default:
        PYCOLL_TOPOLOGY's.
    profile: a file of `pycoll tune`, a `pycoll.Profile`; False for none. Default: PYCOLL_PROFILE's, else this
        machine's own. Of both, those of the group's rank 0 count.
    deterministic: add in one order always. Default: PYCOLL_DETERMINISTIC. The same on all ranks.
    """

    topology: Any = None
    profile: Any = None
    deterministic: bool | None = None


def __getattr__(name: str) -> Any:
    if name == "ddp_hook":
        from pycoll.torch import hooks  # imports torch

        return hooks.ddp_hook
    if name in ("mem_pool", "share_pool"):
        from pycoll.torch import gpu_memory

        return getattr(gpu_memory, name)
    if name in ("flight_recorder", "dump_flight_recorder"):
        from pycoll.torch import recorder

        return getattr(recorder, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def stragglers(group: dist.ProcessGroup | None = None) -> StragglerReport:
    """Who is late to the collectives of a process group, torch's default one unless `group` is given, and
    what that costs: see `pycoll.stragglers`. Ranks are the group's own. A local call.

    Raises ValueError for a group whose CPU backend is not pycoll.
    """
    import torch
    import torch.distributed as dist

    from pycoll.lateness import report
    from pycoll.torch import build

    members = dist.distributed_c10d._get_default_group() if group is None else group
    backend = members._get_backend(torch.device("cpu"))
    if backend.name() != "pycoll":
        raise ValueError(f"stragglers: the group's CPU backend is {backend.name()}, not pycoll")
    return report(*build.load().stragglers(backend))


def autoload() -> None:
    """Register the backend; called by `import torch`. Never raises: an error here would break that import."""
    try:
        register()
    except Exception as error:  # whatever it is, torch must remain usable
        warnings.warn(f"pycoll could not register its torch.distributed backend: {error!r}", stacklevel=2)


def register() -> None:
    """Make `init_process_group("pycoll")` known to torch.distributed. Idempotent.

    Only needed by hand where autoloading is off (`TORCH_DEVICE_BACKEND_AUTOLOAD=0`).
    """
    import torch.distributed as dist

    if not dist.is_available() or "pycoll" in dist.Backend.backend_list:
        return
    dist.Backend.register_backend("pycoll", _create, extended_api=True, devices=["cpu", "cuda"])
    _serve_monitored_barrier(dist)


def _serve_monitored_barrier(dist: Any) -> None:
    """`torch.distributed.monitored_barrier` refuses all backends but gloo before it asks them: let it ask a
    group whose CPU backend is pycoll. Every other group gets torch's own function."""
    import functools

    import torch

    c10d = dist.distributed_c10d
    torchs_own = c10d.monitored_barrier

    @functools.wraps(torchs_own)
    def monitored_barrier(
        group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        members = c10d._get_default_group() if group is None else group
        ours = False
        if not c10d._rank_not_in_group(group):
            with contextlib.suppress(RuntimeError):  # it has no backend for the CPU
                ours = members._get_backend(torch.device("cpu")).name() == "pycoll"
        if not ours:
            torchs_own(group, timeout, wait_all_ranks)
            return
        if isinstance(timeout, (int, float)):
            timeout = timedelta(seconds=timeout)
        limit = {} if timeout is None else {"timeout": timeout}
        members.monitored_barrier(**limit, wait_all_ranks=wait_all_ranks)

    c10d.monitored_barrier = dist.monitored_barrier = monitored_barrier


def _create(options: Any, backend_options: Any = None) -> dist.Backend:
    """Make the backend of one group.

    Args:
        options: c10d's DistributedBackendOptions (store, group_rank, group_size, timeout, group_id, ...).
        backend_options: what the user gave as `pg_options`: an `Options`, or None.

    Raises:
        ValueError: `backend_options` are of another type, or make no sense.
        RuntimeError: the adapter could not be compiled on this machine.
        torch.distributed.DistBackendError: a rank failed meanwhile, did not come in time, or was lost.
    """
    from pycoll.torch import creation

    return creation.create(options, backend_options)
