"""The networks that are measured, and what each should show."""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20
#: Of a rated link, what TCP's payload gets at an MTU of 1500 bytes.
PAYLOAD = 1448 / 1514


@dataclass(frozen=True)
class Target:
    """What must be reached at one size: a least share of the bound, or a least ratio to another library."""

    size: int
    of_bound: float = 0.0
    over: str = ""
    ratio: float = 0.0
    traffic: float = 0.0  # at most so many times the bytes of the bound on each host's link


@dataclass(frozen=True)
class Setup:
    name: str
    title: str
    hosts: int
    rate: int  # of a host's link, each direction; bit/s
    per_host: int = 1
    racks: int = 1
    spine: int = 0  # bit/s; 0: as a host's link
    dealt: bool = False  # ranks are dealt to the racks in turn
    topologies: bool = False  # pycoll is also run with the topology's file, and with a probed one
    sizes: tuple[int, ...] = (16 * MIB,)
    targets: tuple[Target, ...] = ()

    @property
    def ranks(self) -> int:
        return self.hosts * self.per_host

    @property
    def host_order(self) -> list[int]:
        """Hosts in the order in which ranks are given to them."""
        if not self.dealt:
            return list(range(self.hosts))
        in_rack = self.hosts // self.racks
        return [rack * in_rack + place for place in range(in_rack) for rack in range(self.racks)]

    @property
    def host_of_rank(self) -> list[int]:
        return [host for host in self.host_order for _ in range(self.per_host)]

    def topology(self) -> str:
        """A topology file of the network, as a user would write it, with what TCP gets of the links."""
        rate = f"{self.rate * PAYLOAD / 1e6:.0f} Mbit/s"
        spine = f"{(self.spine or self.rate) * PAYLOAD / 1e6:.0f} Mbit/s"
        lines = ["pycoll: 1", f"name: {self.name}", "nodes:"]
        lines += [f'  - {{name: "rack[0-{self.racks - 1}]", kind: switch}}']
        if self.per_host > 1:
            lines += [f'  - {{name: "h[0-{self.hosts - 1}]", kind: switch}}']
            last = self.ranks - 1
            lines += [f'  - {{name: "r[0-{last}]", kind: device}}']
        else:
            lines += [f'  - {{name: "h[0-{self.hosts - 1}]", kind: device}}']
        lines += ["links:"]
        for host in range(self.hosts):
            rack = host // (self.hosts // self.racks)
            lines += [f"  - {{between: [h{host}, rack{rack}], bandwidth: {rate}, latency: 30 us}}"]
        for rack in range(1, self.racks):
            lines += [f"  - {{between: [rack0, rack{rack}], bandwidth: {spine}, latency: 30 us}}"]
        if self.per_host > 1:
            for rank, host in enumerate(self.host_of_rank):
                lines += [f"  - {{between: [r{rank}, h{host}], bandwidth: 40 Gbit/s, latency: 1 us}}"]
            names = [f"r{rank}" for rank in range(self.ranks)]
        else:
            names = [f"h{host}" for host in self.host_order]
        lines += [f"ranks: [{', '.join(names)}]", ""]
        return "\n".join(lines)


_GBIT, _MBIT = 10**9, 10**6
_SIZES = (4, KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)

SETUPS = (
    Setup(
        "four",
        "4 hosts, one switch, 1 Gbit/s",
        hosts=4,
        rate=_GBIT,
        sizes=_SIZES,
        targets=(
            Target(16 * MIB, of_bound=0.95),
            *(Target(size, over="gloo", ratio=0.97) for size in _SIZES),
            Target(KIB, over="gloo", ratio=2),
        ),
    ),
    Setup(
        "eight",
        "8 hosts, one switch, 500 Mbit/s",
        hosts=8,
        rate=500 * _MBIT,
        sizes=_SIZES,
        targets=(
            Target(16 * MIB, of_bound=0.93),
            *(Target(size, over="gloo", ratio=0.97) for size in _SIZES),
            Target(KIB, over="gloo", ratio=2),
        ),
    ),
    Setup(
        "racks-dealt",
        "8 hosts in two racks, 500 Mbit/s, spine 500 Mbit/s, ranks dealt to the racks in turn",
        hosts=8,
        rate=500 * _MBIT,
        racks=2,
        dealt=True,
        topologies=True,
        targets=(Target(16 * MIB, over="gloo", ratio=3.5),),
    ),
    Setup(
        "thin-spine",
        "8 hosts in two racks, 500 Mbit/s, spine 125 Mbit/s, ranks rack by rank",
        hosts=8,
        rate=500 * _MBIT,
        racks=2,
        spine=125 * _MBIT,
        topologies=True,
        targets=(Target(16 * MIB, over="gloo", ratio=1.5), Target(16 * MIB, of_bound=0.9)),
    ),
    Setup(
        "two-a-host",
        "4 hosts with 2 ranks each, one switch, 1 Gbit/s",
        hosts=4,
        rate=_GBIT,
        per_host=2,
        targets=(
            Target(16 * MIB, of_bound=0.95),
            Target(16 * MIB, over="gloo", ratio=1.1),
            Target(16 * MIB, traffic=1.03),
        ),
    ),
)
