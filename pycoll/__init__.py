"""pycoll: collective communication that is fast, checked, and can say why.

    comm = pycoll.init()            # under torchrun; or pycoll.spawn(fn, ranks=4) without any launcher
    comm.allreduce(x)               # a NumPy array or a torch tensor, in place

Everything here is loaded when first used: importing pycoll imports neither torch nor matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> the module that defines it.
_HOMES = {
    "init": "pycoll.bootstrap",
    "empty": "pycoll.bootstrap",
    "spawn": "pycoll.launch",
    "Communicator": "pycoll.communicator",
    "Work": "pycoll.communicator",
    "premul_sum": "pycoll.communicator",
    "Decision": "pycoll.selection.decisions",
    "DecisionTable": "pycoll.selection.decisions",
    "Profile": "pycoll.selection.profile",
    "Schedule": "pycoll.schedule",
    "ScheduleReport": "pycoll.schedule",
    "algorithm": "pycoll.schedule",
    "algorithms": "pycoll.schedule",
    "build": "pycoll.schedule",
    "Simulation": "pycoll.simulation",
    "StragglerReport": "pycoll.lateness",
    "stragglers": "pycoll.lateness",
    "Selector": "pycoll.selection.selector",
    "Topology": "pycoll.topology",
    "Bound": "pycoll.bounds",
    "bound": "pycoll.bounds",
    "Error": "pycoll.errors",
    "InvalidArgument": "pycoll.errors",
    "Mismatch": "pycoll.errors",
    "PeerLost": "pycoll.errors",
    "Timeout": "pycoll.errors",
    "Aborted": "pycoll.errors",
    "Unsupported": "pycoll.errors",
    "ScheduleError": "pycoll.errors",
    "TopologyError": "pycoll.errors",
}

if TYPE_CHECKING:
    from pycoll.bootstrap import empty, init
    from pycoll.bounds import Bound, bound
    from pycoll.communicator import Communicator, Work, premul_sum
    from pycoll.errors import (
        Aborted,
        Error,
        InvalidArgument,
        Mismatch,
        PeerLost,
        ScheduleError,
        Timeout,
        TopologyError,
        Unsupported,
    )
    from pycoll.lateness import StragglerReport, stragglers
    from pycoll.launch import spawn
    from pycoll.schedule import Schedule, ScheduleReport, algorithm, algorithms, build
    from pycoll.selection.decisions import Decision, DecisionTable
    from pycoll.selection.profile import Profile
    from pycoll.selection.selector import Selector
    from pycoll.simulation import Simulation
    from pycoll.topology import Topology

__all__ = [
    "Aborted",
    "Bound",
    "Communicator",
    "Decision",
    "DecisionTable",
    "Error",
    "InvalidArgument",
    "Mismatch",
    "PeerLost",
    "Profile",
    "Schedule",
    "ScheduleError",
    "ScheduleReport",
    "Selector",
    "Simulation",
    "StragglerReport",
    "Timeout",
    "Topology",
    "TopologyError",
    "Unsupported",
    "Work",
    "__version__",
    "algorithm",
    "algorithms",
    "bound",
    "build",
    "empty",
    "init",
    "premul_sum",
    "spawn",
    "stragglers",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pycoll' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
