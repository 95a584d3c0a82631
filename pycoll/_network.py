"""How ranks of other hosts are reached: the user's settings, and this host's own address."""

from __future__ import annotations

import fcntl
import math
import os
import socket
import struct
from collections.abc import Mapping
from typing import NamedTuple

from pycoll import _ucx
from pycoll.errors import Error, InvalidArgument

MOST_LANES = 64
_NETWORKS = ("", "tcp", "ucx")


class Settings(NamedTuple):
    """What the engine is told of the network."""

    towards: str = ""  #: a host name or address that all ranks can reach; "": not known
    interface: str = ""  #: PYCOLL_IFNAME: the interface's name, or how it begins; "": the engine finds one
    lanes: int = 1  #: PYCOLL_LANES: connections a pair of ranks
    silence: float = 4.0  #: PYCOLL_SILENCE: seconds without a sign of life after which a peer is lost
    connect_timeout: float = 30.0  #: PYCOLL_CONNECT_TIMEOUT: seconds in which a peer must be reached


def settings(
    towards: str = "", timeout: float = math.inf, environment: Mapping[str, str] = os.environ
) -> Settings:
    """The environment's settings. `timeout`: that of the group, which connecting does not exceed.

    Raises InvalidArgument, naming the variable, for a value that makes no sense.
    """
    _ucx.offer_wheel()
    network = environment.get("PYCOLL_NETWORK", "").strip().lower()
    if network not in _NETWORKS:
        raise InvalidArgument(
            f"PYCOLL_NETWORK={environment['PYCOLL_NETWORK']!r}: it is tcp or ucx, or left out: ucx then "
            "where there is an RDMA device, tcp elsewhere"
        )
    interface = environment.get("PYCOLL_IFNAME", "").strip()
    if any(letter in interface for letter in " ,/:"):
        raise InvalidArgument(
            f"PYCOLL_IFNAME={environment['PYCOLL_IFNAME']!r}: it is the name of one network interface, or "
            "how its name begins, such as eth0 or ib"
        )
    return Settings(
        towards,
        interface,
        _lanes(environment),
        _seconds(environment, "PYCOLL_SILENCE", 4.0, "without a sign of life until a peer counts as lost"),
        min(
            _seconds(environment, "PYCOLL_CONNECT_TIMEOUT", 30.0, "in which a peer must be reached"), timeout
        ),
    )


def host_of(address: str | None) -> str:
    """ "host" of "host:port"; "" of None."""
    if not address:
        return ""
    return address.removeprefix("tcp://").rpartition(":")[0].removeprefix("[").removesuffix("]")


def _lanes(environment: Mapping[str, str]) -> int:
    text = environment.get("PYCOLL_LANES", "").strip() or "1"
    if not text.isdigit() or not 1 <= int(text) <= MOST_LANES:
        raise InvalidArgument(
            f"PYCOLL_LANES={environment['PYCOLL_LANES']!r}: it is the number of connections a pair of ranks, "
            f"from 1 to {MOST_LANES}"
        )
    return int(text)


def _seconds(environment: Mapping[str, str], name: str, default: float, meaning: str) -> float:
    text = environment.get(name, "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e6:
        raise InvalidArgument(f"{name}={environment[name]!r}: it is a positive number of seconds {meaning}")
    return value


def own_address() -> str:
    """An address of this host by which others can reach it: of the interface that PYCOLL_IFNAME pins, else of
    the host's name, where that is not loopback, else of the first interface that is up.

    Raises Error, listing what was tried.
    """
    pinned = os.environ.get("PYCOLL_IFNAME", "").strip()
    name = socket.gethostname()
    tried = []
    if not pinned:
        addresses = resolve(name)
        for address in addresses:
            if not is_loopback(address):
                return address
        found = f"resolves to {', '.join(addresses)}" if addresses else "does not resolve"
        tried.append(f'this host\'s name "{name}" {found}')
    for interface, address in interface_addresses():
        if interface.startswith(pinned) and not is_loopback(address):
            return address
        tried.append(f"{interface} {address}")
    wanted = f"PYCOLL_IFNAME={pinned} has no address" if pinned else "this host has no address"
    raise Error(f"{wanted} by which other hosts could reach it; looked at: {'; '.join(tried)}")


def resolve(host: str) -> list[str]:
    """The addresses of a name; none where it has none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(address[0]) for _, _, _, _, address in found))


def is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def interface_addresses() -> list[tuple[str, str]]:
    """(interface, address) of the interfaces that are up: IPv4 first, then global IPv6."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue
            found.append((name, socket.inet_ntoa(answer[20:24])))
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        rows = []
    for digits, _, _, scope, _, name in rows:
        if scope == "00":  # global
            found.append((name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))))
    return found
