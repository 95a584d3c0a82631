"""UCX, which may connect ranks of different hosts: which one there is, and the libucx wheel's place."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec

from pycoll import _core


@dataclass(frozen=True)
class UcxInformation:
    """The UCX that pycoll would use in this process, and why not another.

    `version`, `path` of its libucp and `origin` ("PYCOLL_UCX", "the system's", "the libucx wheel's", "already
    loaded in this process") are "" unless `found`. `transports` are those that can cross hosts, such as
    "tcp/eth0" or "rc_mlx5/mlx5_0:1"; `passed_over` has a line for each library that is not fit, with the
    reason; `rdma_devices` are the machine's adapters, whether or not the library found can use them.
    """

    found: bool
    path: str
    origin: str
    version: str
    transports: list[str]
    passed_over: list[str]
    rdma_devices: list[str]


def offer_wheel() -> None:
    """Tells the core where the package libucx keeps its libraries, if it is installed.

    To be called before the first group that spans hosts is made.
    """
    package = find_spec("libucx")
    for folder in (package.submodule_search_locations or []) if package is not None else []:
        _core.set_ucx_search_path(os.path.join(folder, "lib"))


def information() -> UcxInformation:
    """Looks for UCX; loads it, takes up to half a second at the first call."""
    offer_wheel()
    return UcxInformation(**_core.ucx_information())
