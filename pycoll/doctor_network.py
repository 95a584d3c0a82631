"""What `pycoll doctor` looks at for jobs of several hosts: interfaces, names, the meeting point, UCX."""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec

from pycoll import _network, launchers
from pycoll.doctor import Finding
from pycoll.errors import Error, InvalidArgument

_PATIENCE = 3.0  # seconds for a connection
_RDMA = "/sys/class/infiniband"


def settings() -> Iterator[Finding]:
    """The variables that pycoll itself reads."""
    names = (
        "PYCOLL_NETWORK",
        "PYCOLL_IFNAME",
        "PYCOLL_LANES",
        "PYCOLL_SILENCE",
        "PYCOLL_CONNECT_TIMEOUT",
        "PYCOLL_UCX",
    )
    given = ", ".join(f"{name}={os.environ[name]}" for name in names if os.environ.get(name))
    try:
        _network.settings()
    except InvalidArgument as error:
        yield Finding("network settings", "problem", str(error), "correct or unset the variable")
        return
    yield Finding("network settings", "ok", given or "all by default")


def interfaces() -> Iterator[Finding]:
    """What there is, and which of it pycoll would use, by its own choice."""
    from pycoll import _core

    pinned = os.environ.get("PYCOLL_IFNAME", "").strip()
    towards = os.environ.get("MASTER_ADDR", "")
    try:
        found = _core.network_interfaces(towards, pinned)
    except InvalidArgument as error:
        remedy = "name one of these, or unset PYCOLL_IFNAME: the one that leads to MASTER_ADDR is taken then"
        yield Finding("network interfaces", "problem", str(error), remedy)
        return
    except Error as error:
        remedy = "bring an interface up and give it an address (ip link set, ip addr add)"
        yield Finding("network interfaces", "problem", str(error), remedy)
        return
    chosen = [one for one in found if one["chosen"]]
    said = "; ".join(f"{one['name']} {', '.join(one['addresses'])}: {one['reason']}" for one in chosen)
    others = ", ".join(one["name"] for one in found if not one["chosen"])
    said += f" (not: {others})" if others else ""
    if all(one["loopback"] for one in chosen):
        remedy = "jobs of this host work; for others, bring an interface up and give it an address"
        yield Finding("network interfaces", "warning", said, remedy)
    else:
        yield Finding("network interfaces", "ok", said)


def ucx() -> Iterator[Finding]:
    """The library between hosts with RDMA. It is not needed elsewhere."""
    if find_spec("pycoll._ucx") is None:
        return
    found = import_module("pycoll._ucx").information()
    asked_for = os.environ.get("PYCOLL_NETWORK", "").strip().lower() == "ucx"
    devices = ", ".join(found.rdma_devices) or "no RDMA device"
    passed_over = f"; passed over: {'; '.join(found.passed_over)}" if found.passed_over else ""
    remedy = "install libucp (apt install libucx0, or pip install libucx-cu12), or name one in PYCOLL_UCX"
    if found.found:
        transports = ", ".join(found.transports) or "none"
        rdma = any(not transport.startswith("tcp") for transport in found.transports)
        said = (
            f"{found.version}, {found.origin}, {found.path}; transports: {transports}; {devices}{passed_over}"
        )
        if found.rdma_devices and not rdma:
            yield Finding("UCX", "warning", said, f"this UCX has no RDMA: {remedy}")
        else:
            yield Finding("UCX", "ok", said)
    elif asked_for:
        yield Finding("UCX", "problem", f"PYCOLL_NETWORK=ucx, and none is fit{passed_over}", remedy)
    elif found.rdma_devices:
        said = f"none is fit, and there is RDMA: {devices}{passed_over}"
        yield Finding("UCX", "warning", said, f"hosts are connected over TCP until you {remedy}")
    else:
        yield Finding("UCX", "absent", f"none is fit, and none is needed: {devices}{passed_over}")


def host_name() -> Iterator[Finding]:
    name = socket.gethostname()
    addresses = _network.resolve(name)
    if not addresses:
        yield Finding(
            "host name",
            "warning",
            f"{name} resolves to nothing",
            f"put this host's address and {name} into /etc/hosts or DNS, and give MASTER_ADDR as an address "
            "until then",
        )
    elif all(map(_network.is_loopback, addresses)):
        yield Finding(
            "host name",
            "warning",
            f"{name} resolves to loopback, {', '.join(addresses)}",
            "pycoll goes by the route to MASTER_ADDR and does not mind; gloo and others bind to loopback and "
            f"hang: let /etc/hosts give {name} the address by which other hosts reach it",
        )
    else:
        yield Finding("host name", "ok", f"{name} is {', '.join(addresses)}")


def meeting_point() -> Iterator[Finding]:
    """What a launcher has set, if this is a job; and whether rank 0's host can be reached from here."""
    try:
        here = launchers.place()
        if not here.launcher and not os.environ.get("MASTER_ADDR"):
            yield Finding(
                "job",
                "absent",
                "no launcher has set RANK and WORLD_SIZE, nor anybody MASTER_ADDR",
                "run the doctor as a job is run (torchrun --no-python pycoll doctor, srun pycoll doctor), "
                "and it looks whether rank 0's host can be reached",
            )
            return
        if here.launcher and here.ranks == 1:
            yield Finding("job", "ok", f"one rank, by {here.launcher}")
            return
        if here.launcher:
            address = launchers.meeting_point(here)
            said = f"rank {here.rank} of {here.ranks}, by {here.launcher}"
        else:
            address = f"{os.environ['MASTER_ADDR']}:{os.environ.get('MASTER_PORT', launchers.DEFAULT_PORT)}"
            said = "no launcher"
    except InvalidArgument as error:
        yield Finding("job", "problem", str(error), "docs/hosts.md has all variables, by launcher")
        return
    host, port = _network.host_of(address), address.rpartition(":")[2]
    yield Finding("job", "ok", f"{said}; the ranks meet at {address}")
    if not port.isdigit():
        yield Finding("meeting point", "problem", f"MASTER_PORT={port} is no number", "such as 29500")
        return
    yield from _reachable(host, int(port))


def _reachable(host: str, port: int) -> Iterator[Finding]:
    addresses = _network.resolve(host)
    if not addresses:
        yield Finding(
            "meeting point",
            "problem",
            f"{host} is no name of a host that this one knows",
            "correct MASTER_ADDR, or give rank 0's host as an address",
        )
        return
    own = {address for _, address in _network.interface_addresses()}
    if any(address in own or _network.is_loopback(address) for address in addresses):
        yield from _free_here(host, port, addresses)
        return
    why = []
    for address in addresses:
        try:
            with socket.create_connection((address, port), timeout=_PATIENCE):
                yield Finding("meeting point", "ok", f"{address} port {port} answers")
                return
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                yield Finding(
                    "meeting point", "ok", f"{address} is reached; nobody listens at port {port} yet"
                )
                return
            why.append(f"{address}: {error.strerror or error}")
    yield Finding(
        "meeting point",
        "problem",
        f"port {port} of {host} cannot be reached: {'; '.join(why)}",
        "is the host up, on a network of this one, and does a firewall let the port through? pycoll also "
        "needs the ports that the kernel gives to listeners (sysctl net.ipv4.ip_local_port_range) between "
        "all hosts",
    )


def _free_here(host: str, port: int, addresses: list[str]) -> Iterator[Finding]:
    """This is rank 0's host: it must be able to listen."""
    family = socket.AF_INET6 if ":" in addresses[0] else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((addresses[0], port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            found = f"port {port} of this host is in use: by this job's launcher or rank 0, or another job's"
            remedy = "if it is another's, choose another MASTER_PORT"
            yield Finding("meeting point", "warning", found, remedy)
        else:
            remedy = "a port from 1024 to 65535 needs no privileges"
            yield Finding("meeting point", "problem", f"{host} port {port}: {error.strerror}", remedy)
        return
    loopback = all(map(_network.is_loopback, addresses))
    if loopback:
        yield Finding(
            "meeting point",
            "ok",
            f"{host} is this host, at {addresses[0]}, where only ranks of this host reach it; port {port} is "
            "free",
        )
    else:
        yield Finding("meeting point", "ok", f"{host} is this host, and port {port} is free")


def locked_memory() -> Iterator[Finding]:
    devices = sorted(os.listdir(_RDMA)) if os.path.isdir(_RDMA) else []
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft >> 10} KiB"
    if not devices:
        yield Finding("locked memory", "ok", f"limit {limit}; no RDMA device, which alone would need it")
    elif soft != resource.RLIM_INFINITY and soft < 1 << 30:
        yield Finding(
            "locked memory",
            "warning",
            f"limit {limit}, and there is RDMA: {', '.join(devices)}",
            "ulimit -l unlimited (in a container: --ulimit memlock=-1): RDMA registers the memory it sends",
        )
    else:
        yield Finding("locked memory", "ok", f"limit {limit}; RDMA: {', '.join(devices)}")
