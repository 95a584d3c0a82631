"""What a group decides by from its first call on: the user's pins, what was measured on this machine, and the
topology that the user has described."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, NamedTuple

from pycoll.errors import InvalidArgument

if TYPE_CHECKING:
    from pycoll.decisions import DecisionTable

DETERMINISTIC = "PYCOLL_DETERMINISTIC"
REDECIDE = "PYCOLL_REDECIDE"
TOPOLOGY = "PYCOLL_TOPOLOGY"
#: Bytes for which a topology decides. Below the first the engine's own way for small messages stands.
_SIZES = tuple(4**power for power in range(7, 15))
#: Those whose choice is simulated. The others' default is near enough the best on any topology.
_COLLECTIVES = ("allreduce", "reduce_scatter", "all_gather", "broadcast")
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


class Beginning(NamedTuple):
    """How a group begins, as one rank sees it."""

    decisions: DecisionTable | None  #: of rank 0 only, which tells the others
    rules: str  #: what must be the same on all ranks, in words
    fixed_order: bool = False  #: add in one order always: nothing begins before all ranks are there


def begin(
    rank: int,
    ranks: int,
    profile: object = None,
    deterministic: bool | None = None,
    topology: object = None,
) -> Beginning:
    """Reads PYCOLL_ALGO, PYCOLL_DETERMINISTIC and PYCOLL_REDECIDE on every rank, and the profile and the
    topology on rank 0.

    Raises InvalidArgument for any that makes no sense, and for a profile or topology of another machine.
    """
    pins = os.environ.get("PYCOLL_ALGO", "")
    fixed = _flag(DETERMINISTIC) if deterministic is None else deterministic
    factor = _factor()
    rules = f"PYCOLL_ALGO={pins!r}, deterministic={fixed}, {REDECIDE}={factor:g}"
    if pins:
        from pycoll.pins import parse_pins

        pinned = parse_pins(pins, ranks)
        if fixed:
            _refuse_orders(pinned)
    if rank != 0 or ranks == 1:
        return Beginning(None, rules, fixed)
    table = None
    if not fixed:
        from pycoll import profile as profiles

        measured = profiles.for_group(profile, ranks)
        if measured is not None:
            table = measured.decisions()
        described = _of_topology(topology, ranks)
        if described is not None:
            table = described if table is None else described.merged_with(table)
    if pins:
        table = pinned if table is None else table.merged_with(pinned)
    if table is not None:
        from pycoll.decisions import DecisionTable

        table = DecisionTable(table.rows, table.schedules, factor)
    return Beginning(table, rules, fixed)


def _of_topology(asked: object, ranks: int) -> DecisionTable | None:
    """The choices by simulation on the topology given, else on PYCOLL_TOPOLOGY's; None where neither is."""
    by_variable = asked is None
    asked = os.environ.get(TOPOLOGY) or None if by_variable else asked
    if asked is None or asked is False:
        return None
    from pycoll.decisions import DecisionTable
    from pycoll.selector import Selector
    from pycoll.topology import Topology

    if isinstance(asked, (str, os.PathLike)):
        machine = Topology.load(asked)
    elif isinstance(asked, Topology):
        machine = asked
    else:
        raise InvalidArgument(
            f"init: topology is a {type(asked).__name__}: give a topology file or a pycoll.Topology"
        )
    if len(machine.ranks) != ranks:
        said = (
            f"the topology {machine.name!r} has places for {len(machine.ranks)} ranks, the group has {ranks}"
        )
        if not by_variable:
            raise InvalidArgument(f"init: {said}: give one of this job (`pycoll topo probe` writes it)")
        # One variable serves all groups of a job, of which some are smaller.
        logging.getLogger("pycoll").warning("%s; %s is left unused for it", said, TOPOLOGY)
        return None
    # The first size only marks where the second one's row begins.
    table = Selector(machine, cache=True).table(_COLLECTIVES, (_SIZES[0] // 4, *_SIZES))
    return DecisionTable([row for row in table.rows if row.begin > 0], table.schedules)


def _refuse_orders(pinned: DecisionTable) -> None:
    from pycoll.bench.workload import REDUCTIONS

    for row in pinned.rows:
        if row.collective in REDUCTIONS and row.way != "direct":
            raise InvalidArgument(
                f"{row.reason} does not go with deterministic=True: {row.way} adds in another order for "
                "another size; only direct adds in rank order always"
            )


def _flag(name: str) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if value in _YES:
        return True
    if value in _NO:
        return False
    raise InvalidArgument(f"{name}={value!r}: it must be 1 or 0")


def _factor() -> float:
    text = os.environ.get(REDECIDE, "2")
    try:
        factor = float(text)
    except ValueError:
        factor = -1.0
    if factor != 0 and not 1 < factor < 1e6:
        raise InvalidArgument(
            f"{REDECIDE}={text!r}: it is by how many times its prediction a choice's time may miss it before "
            "others are tried: a number above 1, or 0 for never"
        )
    return factor
