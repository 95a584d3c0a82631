"""Topologies: the machine as a graph of devices, switches and links, and where such graphs come from."""

from __future__ import annotations

from pycoll.topology.model import Link, Node, Topology

__all__ = ["Link", "Node", "Topology"]
