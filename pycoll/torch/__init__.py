"""The torch.distributed backend "pycoll".

    torch.distributed.init_process_group("pycoll")

needs no import of pycoll: torch calls `autoload` through the entry point group `torch.backends`. Importing
this module imports neither torch nor anything compiled, since it happens within the user's `import torch`.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch.distributed as dist

    from pycoll.torch.hooks import ddp_hook

__all__ = ["autoload", "ddp_hook", "register"]


def __getattr__(name: str) -> Any:
    if name == "ddp_hook":
        from pycoll.torch import hooks  # imports torch

        return hooks.ddp_hook
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
    dist.Backend.register_backend("pycoll", _create, extended_api=True, devices=["cpu"])


def _create(options: Any, backend_options: Any = None) -> dist.Backend:
    """Make the backend of one group.

    Args:
        options: c10d's DistributedBackendOptions (store, group_rank, group_size, timeout, group_id, ...).
        backend_options: what the user gave as `pg_options`; pycoll takes none.

    Raises:
        ValueError: `backend_options` was given.
        RuntimeError: the adapter could not be compiled on this machine.
        torch.distributed.DistBackendError: a rank failed meanwhile, did not come in time, or was lost.
    """
    from pycoll.torch import creation

    return creation.create(options, backend_options)
