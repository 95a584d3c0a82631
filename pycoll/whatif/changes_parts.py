"""Changes to what there is: parts that fail, are taken out or added."""

from __future__ import annotations

from dataclasses import dataclass

from pycoll.errors import InvalidArgument, TopologyError
from pycoll.whatif.edits import part_of, with_copy, without_links, without_nodes
from pycoll.whatif.names import links_meant, nodes_meant
from pycoll.whatif.scenario import Scenario

__all__ = ["Add", "Fail", "Remove"]


@dataclass(frozen=True)
class Fail:
    """A link or a node is gone; ``what`` is its name, or that after ``link:`` or ``node:``.

    Of a switch only itself is gone, of a server (a group of nodes, as ``s3`` of ``s3.gpu0``) all of it.
    Ranks on what is gone are gone, and the others are numbered anew.
    """

    what: str

    def apply(self, scenario: Scenario) -> Scenario:
        sort, _, name = self.what.partition(":")
        if sort == "link" and name:
            return scenario.on(without_links(scenario.topology, links_meant(scenario.topology, name)))
        if sort == "node" and name:
            return scenario.on(
                without_nodes(scenario.topology, nodes_meant(scenario.topology, name), str(self))
            )
        try:
            gone = nodes_meant(scenario.topology, self.what)
        except TopologyError:
            if "-" not in self.what:
                raise
            return scenario.on(without_links(scenario.topology, links_meant(scenario.topology, self.what)))
        return scenario.on(without_nodes(scenario.topology, gone, str(self)))

    def __str__(self) -> str:
        return f"--fail {self.what}"


@dataclass(frozen=True)
class Remove:
    """A part of the machine is taken out, with all that hangs on it alone: a host, a switch, a rack."""

    what: str

    def apply(self, scenario: Scenario) -> Scenario:
        topology = scenario.topology
        return scenario.on(without_nodes(topology, part_of(topology, self.what), str(self)))

    def __str__(self) -> str:
        return f"--remove {self.what}"


@dataclass(frozen=True)
class Add:
    """``count`` more of a part: a host, a switch with what hangs on it, a group of names such as ``rack0``.

    Each copy has the part's inner links and its links to the rest of the machine, at the same places; its
    nodes take the next free numbers, and its ranks come after all others.
    """

    what: str
    count: int = 1

    def apply(self, scenario: Scenario) -> Scenario:
        if self.count < 1:
            raise InvalidArgument(f"{self}: add 1 or more, not {self.count}")
        topology = scenario.topology
        part = part_of(topology, self.what)
        for _ in range(self.count):
            topology = with_copy(topology, part, self.what)
        return scenario.on(topology)

    def __str__(self) -> str:
        return f"--add {self.count}*{self.what}"
