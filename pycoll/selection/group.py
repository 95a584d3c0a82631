"""What a group decides by from its first call on: the user's pins, what was measured on this machine, and a
topology, on which it is simulated."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pycoll.errors import InvalidArgument, TopologyError

if TYPE_CHECKING:
    from pycoll.selection.decisions import Decision, DecisionTable
    from pycoll.selection.profile import Profile
    from pycoll.topology import Topology

DETERMINISTIC = "PYCOLL_DETERMINISTIC"
REDECIDE = "PYCOLL_REDECIDE"
TOPOLOGY = "PYCOLL_TOPOLOGY"
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")

#: What all ranks give together, up to which it travels with the meeting of hosts that begins every
#: collective, and what one rank may give so (csrc/engine/hosts/meeting.cpp).
CARRIED, CARRIED_A_RANK = 32 << 10, 16 << 10
#: Sizes that a group's own table is made for; above so many ranks every second one, and fewer collectives.
_SIZES = tuple(4**power for power in range(6, 15))
_MANY_RANKS = 32
_COLLECTIVES = (
    *("allreduce", "all_gather", "reduce_scatter"),  # also of many ranks
    *("broadcast", "reduce", "gather", "scatter", "all_to_all"),
)
_REDUCTIONS = ("allreduce", "reduce_scatter", "reduce")

#: Names of the group's hosts, and each rank's host -> the table's text.
Decide = Callable[[Sequence[str], Sequence[int]], str]


class Beginning(NamedTuple):
    """How a group begins, as one rank sees it."""

    decide: Decide | None  #: of rank 0 only, which tells the others
    rules: str  #: what must be the same on all ranks, in words
    fixed_order: bool = False  #: add in one order always: nothing begins before all ranks are there


def begin(
    rank: int,
    ranks: int,
    profile: object = None,
    deterministic: bool | None = None,
    topology: object = None,
) -> Beginning:
    """Reads PYCOLL_ALGO, PYCOLL_DETERMINISTIC and PYCOLL_REDECIDE on every rank, the profile and the topology
    on rank 0.

    Raises InvalidArgument for any that makes no sense, and for a profile of another machine; TopologyError
    for a file that is none.
    """
    pins = os.environ.get("PYCOLL_ALGO", "")
    fixed = flag(DETERMINISTIC) if deterministic is None else deterministic
    factor = _factor()
    rules = f"PYCOLL_ALGO={pins!r}, deterministic={fixed}, {REDECIDE}={factor:g}"
    pinned = None
    if pins:
        from pycoll.selection.pins import parse_pins

        pinned = parse_pins(pins, ranks)
        if fixed:
            _refuse_orders(pinned)
    if rank != 0 or ranks == 1:
        return Beginning(None, rules, fixed)
    measured = None
    if not fixed:
        from pycoll.selection import profile as profiles

        measured = profiles.for_group(profile, ranks)
    asked_for = profile is not None or bool(os.environ.get("PYCOLL_PROFILE"))
    where = _topology(topology)
    by_variable = topology is None

    def decide(names: Sequence[str], host_of: Sequence[int]) -> str:
        # What was measured among ranks of one host says nothing of several.
        own = measured if len(names) == 1 or asked_for else None
        placed = _placed(where, by_variable, names, host_of)
        table = _table(names, host_of, own, placed, pinned, fixed)
        return _with_factor(table, factor).to_text() if table is not None else ""

    return Beginning(decide, rules, fixed)


def _with_factor(table: DecisionTable, factor: float) -> DecisionTable:
    from pycoll.selection.decisions import DecisionTable

    return DecisionTable(table.rows, table.schedules, factor, table.topology)


def _topology(asked: object) -> Topology | None:
    from pycoll.topology import Topology

    if asked is None and os.environ.get(TOPOLOGY):
        try:
            return _topology(os.environ[TOPOLOGY])
        except TopologyError as error:
            raise TopologyError(f"{TOPOLOGY}: {error}") from None
    if asked is None or asked is False or asked == "none":
        return None
    if isinstance(asked, Topology):
        return asked
    if isinstance(asked, (str, os.PathLike)):
        return Topology.load(asked)
    raise InvalidArgument(
        f"topology is a {type(asked).__name__}: give a topology file, the name of a bundled one (pycoll topo "
        "list), a pycoll.Topology, or False for none"
    )


def _placed(
    topology: Topology | None, by_variable: bool, names: Sequence[str], host_of: Sequence[int]
) -> Topology | None:
    """The topology with the group's ranks on it."""
    from pycoll.selection.hosts_on_topology import NumbersDiffer, settle

    if topology is None:
        return None
    try:
        placed, how = settle(topology, names, host_of)
    except NumbersDiffer as error:
        # One variable serves all groups of a job, of which some are smaller.
        if not by_variable:
            raise
        logging.getLogger("pycoll").warning("%s; %s is left unused for it", error, TOPOLOGY)
        return None
    logging.getLogger("pycoll").info("%s", how)
    return placed


def _table(
    names: Sequence[str],
    host_of: Sequence[int],
    measured: Profile | None,
    topology: Topology | None,
    pinned: DecisionTable | None,
    fixed: bool,
) -> DecisionTable | None:
    from pycoll.selection.hosts_on_topology import flat_hosts

    tables = []
    if topology is not None:
        tables.append(_modelled(topology, len(names), fixed))
    elif len(names) > 1 and fixed:
        tables.append(_modelled(flat_hosts(host_of), len(names), fixed))
    if measured is not None:
        tables.append(measured.decisions())
    if pinned is not None:
        tables.append(pinned)
    return tables[0].merged_with(*tables[1:]) if tables else None


def _modelled(topology: Topology, hosts: int, fixed: bool) -> DecisionTable:
    """The table of a topology on which the ranks have been placed."""
    from pycoll.selection.decisions import DecisionTable
    from pycoll.selection.hosts_on_topology import with_overheads
    from pycoll.selection.selector import Selector

    topology = with_overheads(topology)
    ranks = len(topology.ranks)
    if fixed and hosts == 1:
        return DecisionTable(topology=topology)  # the fast path adds in the order of ranks
    many = ranks > _MANY_RANKS
    collectives = _REDUCTIONS if fixed else _COLLECTIVES[: 3 if many else None]
    selector = Selector(topology, deterministic=fixed, cache=True)
    table = selector.table(collectives, _SIZES[:: 2 if many else 1])
    if fixed:
        return table
    if hosts == 1:  # where ranks share memory, no schedule is as quick for what is small
        rows = [row for row in table.rows if row.begin >= CARRIED_A_RANK]
        return DecisionTable(rows, table.schedules, topology=topology)
    table = table.merged_with(DecisionTable(_carried(collectives, ranks)))
    return DecisionTable(_later(table, topology, hosts), table.schedules, topology=topology)


def _carried(collectives: Sequence[str], ranks: int) -> Iterator[Decision]:
    """What is so small that it travels with the meeting in which every collective across hosts begins, which
    needs fewer messages than any schedule after it."""
    from pycoll.selection.decisions import FAST_PATH, Decision

    for collective in collectives:
        shared_out = collective in ("all_gather", "gather")  # a rank gives a part of what the table counts
        from_root = collective in ("broadcast", "scatter")
        given = CARRIED if shared_out or from_root else CARRIED // ranks
        most = min(given, CARRIED_A_RANK * (ranks if shared_out else 1))
        reason = "it travels with the meeting of the hosts, which every collective begins with"
        yield Decision(collective, 0, most + 1, FAST_PATH, reason=reason)


def _later(table: DecisionTable, topology: Topology, hosts: int) -> Iterator[Decision]:
    """The rows, with the time of the meeting of hosts in their predictions."""
    from dataclasses import replace
    from statistics import median

    devices = [topology.nodes[index] for index in topology.ranks]
    latency = 2 * median(link.latency for link in topology.links) + median(d.overhead for d in devices)
    meeting = math.ceil(math.log2(hosts)) * latency
    for row in table.rows:
        yield replace(row, alpha=row.alpha + meeting) if row.basis == "modelled" else row


def _refuse_orders(pinned: DecisionTable) -> None:
    from pycoll.bench.workload import REDUCTIONS

    for row in pinned.rows:
        if row.collective in REDUCTIONS and row.way != "direct":
            raise InvalidArgument(
                f"{row.reason} does not go with deterministic=True: {row.way} adds in another order for "
                "another size; only direct adds in rank order always"
            )


def flag(name: str) -> bool:
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
