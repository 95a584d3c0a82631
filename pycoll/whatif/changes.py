"""Changes to a machine, each small and exact: what fails, slows, comes late, is added or moved.

    from pycoll.whatif import Fail, Slow, apply
    after = apply(Scenario(topology), [Fail("tor0-spine1"), Slow("leaf*-spine*", 0.5)])

A change turns one scenario into another and can be applied in any order and number. Names are read as
:mod:`pycoll.whatif.names` says; a link that is named without a direction is meant both ways. Errors are
TopologyError, for names that mean nothing, and InvalidArgument, for figures that make no sense.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from pycoll.errors import InvalidArgument
from pycoll.whatif.changes_links import Busy, Latency, Oversubscribe, Slow
from pycoll.whatif.changes_parts import Add, Fail, Remove
from pycoll.whatif.changes_use import Ecmp, Flows, Late, LateDist, Place, Spread
from pycoll.whatif.scenario import Scenario

__all__ = [
    "Add",
    "Busy",
    "Change",
    "Ecmp",
    "Fail",
    "Flows",
    "Late",
    "LateDist",
    "Latency",
    "Oversubscribe",
    "Place",
    "Remove",
    "Slow",
    "Spread",
    "apply",
]


class Change(Protocol):
    """What every change can do. ``str()`` of one is how the command line writes it."""

    def apply(self, scenario: Scenario) -> Scenario:
        """The scenario after the change."""
        ...


def apply(scenario: Scenario, changes: Iterable[Change]) -> Scenario:
    """The scenario after all changes, in their order.

    Raises TopologyError also where ranks cannot reach each other in the end, and InvalidArgument for flows
    where no router hashes: they would change nothing.
    """
    made = list(changes)
    routed = scenario.routing == "hash" or any(isinstance(each, (Ecmp, Spread)) for each in made)
    for each in made:
        if isinstance(each, Flows) and each.lanes > 1 and not routed:
            raise InvalidArgument(
                f"{each}: a connection's flows take paths of their own where routers hash, so give --ecmp "
                "seed=0 too; without it transfers already spread over all equal paths"
            )
    for change in made:
        scenario = change.apply(scenario)
    if made:
        scenario.check(" ".join(str(change) for change in made))
    return scenario
