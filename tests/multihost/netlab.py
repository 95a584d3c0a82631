#!/usr/bin/env python3
"""A few "hosts" on one Linux machine, for testing what runs on many.

Every host is a network namespace with one interface, eth0 (10.77.0.1, 10.77.0.2, ...), joined by
a veth pair to a Linux bridge.  All bridges live in one more namespace, so that neither an address
nor a bridge is ever added to the machine's own network, and nothing in the lab can reach outside.

    one rack                      two racks (racks=2)
    h0  h1  h2  h3                h0 h1 h2 h3        h4 h5 h6 h7
     \\   \\  /   /                  \\  \\  /  /   spine   \\  \\  /  /
      [  bridge  ]                 [  bridge 0 ]--veth--[ bridge 1 ]

Rates are shaped with tbf on both ends of each veth pair, that is, separately per direction: a host
with rate R sends at most R and receives at most R; the spine carries at most spine_rate each way.
The rate counts Ethernet frames (the kernel counts a GSO super-frame as the frames it stands for, so the
offloads stay on and cost little CPU): a TCP stream's payload gets at most R * 1448/1514 = 0.956 R at
MTU 1500.
A host also has its own host name (h0, h1, ...) and /dev/shm. Still shared: the file system, process ids
(so process_vm_readv reaches across "hosts") and /proc/sys/kernel/random/boot_id: tell hosts apart by
their name or by /proc/self/ns/net, never by boot_id alone.
Needs root (or CAP_SYS_ADMIN + CAP_NET_ADMIN), iproute2, and the kernel's veth, bridge, sch_tbf.
With ipv6=True the hosts have IPv6 addresses and no others: fd77::1, fd77::2, ...

As a library:
    with Lab(hosts=8, rate='1gbit', racks=2, spine_rate='1gbit') as lab:
        lab.check_output(0, ['hostname'])                       # run in host 0, wait, return stdout
        p = lab.popen(3, ['python3', 'worker.py'], env={...})   # run in host 3, as subprocess.Popen
        codes = lab.run_all(lambda r: ['python3', 'w.py'], env=lambda r: {'RANK': str(r)}, timeout=60)
        lab.set_rate(2, '100mbit')      # a slow host
        lab.link(5, up=False)           # pull the cable of host 5
        lab.partition(0, 4)             # drop packets between two hosts, both ways; lab.heal(0, 4)

As a command (env:// variables of torch are set: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT,
GLOO_SOCKET_IFNAME=eth0; plus NETLAB_HOST, NETLAB_HOSTS, NETLAB_RACK, NETLAB_IP):
    netlab.py run --hosts 4 --rate 1gbit -- python3 train.py   # one process in each host, then clean up
    netlab.py run --hosts 8 --racks 2 --rate 1gbit --spine 1gbit --per-host 2 -- ./a.out
    netlab.py up --name mylab --hosts 4 --rate 200mbit  # keep it; then: netlab.py exec --name mylab 0 -- CMD
    netlab.py down --name mylab       # or: netlab.py down --all   (every lab of this script)
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

PREFIX = "nl"  # every namespace of ours is called nl-<lab>-...
NET = "10.77.0"  # /16; never added outside the lab's namespaces
NET6 = "fd77:"  # /64
MASTER_PORT = 29577
RUN = "/run/netlab"  # each host's /dev/shm, as a tmpfs


class LabError(RuntimeError):
    pass


def parse_rate(rate: str | int | float | None) -> int | None:
    """'1gbit', '200mbit', '64kbit', a number of bit/s, or None (unlimited) -> bit/s."""
    if rate is None or rate == "none":
        return None
    if isinstance(rate, (int, float)):
        return int(rate)
    m = re.fullmatch(r"([\d.]+)\s*([kmg]?)bit", rate.strip().lower())
    if not m:
        raise ValueError(f"bad rate {rate!r}: write it like 200mbit or 1gbit")
    return int(float(m[1]) * {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}[m[2]])


def _ip(*args: str, ns: str | None = None, tool: str = "ip", check: bool = True) -> str:
    cmd = ([tool, "-n", ns] if ns else [tool]) + list(args)
    p = subprocess.run(cmd, capture_output=True, text=True)
    if check and p.returncode:
        raise LabError(f"{' '.join(cmd)}: {p.stderr.strip() or p.stdout.strip()}")
    return p.stdout


def namespaces(lab: str | None = None) -> list[str]:
    start = f"{PREFIX}-{lab}-" if lab else f"{PREFIX}-"
    names = [line.split()[0] for line in _ip("netns", "list").splitlines() if line.strip()]
    return [name for name in names if name.startswith(start)]


def _batch(ns: str, commands: list[str], tool: str = "ip") -> None:
    """Several commands of ip or tc in one process: starting processes is most of what making a lab takes."""
    p = subprocess.run(
        [tool, "-n", ns, "-batch", "-"], input="\n".join(commands), capture_output=True, text=True
    )
    if p.returncode:
        raise LabError(f"{tool} -n {ns}: {commands}: {p.stderr.strip() or p.stdout.strip()}")


def unavailable() -> str:
    """Why this machine can have no lab; "" where it can."""
    if os.geteuid() != 0:
        return "it takes root to make network namespaces"
    for tool in ("ip", "tc", "unshare"):
        if shutil.which(tool) is None:
            return f"there is no command {tool} (iproute2, util-linux)"
    try:
        with Lab(hosts=1, rate="1gbit", name=f"try{os.getpid()}") as lab:
            lab.check_output(0, ["true"], timeout=20)
    except (LabError, OSError, subprocess.SubprocessError) as error:
        return f"no network namespace can be made here: {error}"
    return ""


def exec_command(ns: str, argv: list[str]) -> list[str]:
    """The command line that runs argv in a host. `ip netns exec` gives it the host's network and its
    /etc/hosts; on top come a host name and a /dev/shm of the host's own."""
    return [
        "ip",
        "netns",
        "exec",
        ns,
        "unshare",
        "--uts",
        "sh",
        "-c",
        f'hostname {ns.rsplit("-", 1)[1]}; mount --bind {RUN}/{ns} /dev/shm; exec "$@"',
        "sh",
        *argv,
    ]


def destroy(lab: str | None = None, grace: float = 0.5) -> None:
    """End what still runs inside a lab's namespaces, and delete them. lab=None: all labs."""
    names = namespaces(lab)
    for sig, wait in ((signal.SIGTERM, grace), (signal.SIGKILL, 0.2)):
        pids = [int(p) for n in names for p in _ip("netns", "pids", n, check=False).split()]
        pids = [p for p in pids if p != os.getpid()]
        for p in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(p, sig)
        if pids:
            time.sleep(wait)
    for n in names:  # a namespace takes its interfaces (and so the veth pairs) with it
        _ip("netns", "del", n, check=False)
        shutil.rmtree(f"/etc/netns/{n}", ignore_errors=True)
        subprocess.run(["umount", "-l", f"{RUN}/{n}"], capture_output=True)
        shutil.rmtree(f"{RUN}/{n}", ignore_errors=True)


class Lab:
    """N hosts in one or more racks. Use as a context manager, or call up() and down()."""

    def __init__(
        self,
        hosts: int = 4,
        rate: str | int | None = "1gbit",
        racks: int = 1,
        spine_rate: str | int | None = None,
        name: str | None = None,
        mtu: int = 1500,
        queue_ms: float = 20.0,
        burst_ms: float = 1.0,
        ipv6: bool = False,
    ):
        if not 1 <= hosts <= 200 or not 1 <= racks <= hosts or hosts % racks:
            raise ValueError("want 1..200 hosts, evenly split over the racks")
        self.hosts, self.racks = hosts, racks
        self.rate = parse_rate(rate)
        self.spine_rate = parse_rate(spine_rate) if spine_rate is not None else self.rate
        self.name = name or f"p{os.getpid()}"
        self.mtu, self.queue_ms, self.burst_ms = mtu, queue_ms, burst_ms
        self.ipv6 = ipv6
        self.sw = f"{PREFIX}-{self.name}-sw"
        self._procs: list[subprocess.Popen] = []

    # -- names ---------------------------------------------------------------------------------
    def ns(self, host: int) -> str:
        return f"{PREFIX}-{self.name}-h{host}"

    def ip(self, host: int) -> str:
        return f"{NET6}:{host + 1:x}" if self.ipv6 else f"{NET}.{host + 1}"

    def rack(self, host: int) -> int:
        return host // (self.hosts // self.racks)

    # -- life ----------------------------------------------------------------------------------
    def up(self) -> Lab:
        if namespaces(self.name):
            raise LabError(f"lab {self.name!r} is already up")
        try:
            mtu = f"mtu {self.mtu}"
            _ip("netns", "add", self.sw)
            _batch(
                self.sw,
                [
                    "link set lo up",
                    *(
                        f"{verb} br{r} {rest}"
                        for r in range(self.racks)
                        for verb, rest in (("link add", "type bridge"), ("link set", "up"))
                    ),
                ],
            )
            for r in range(1, self.racks):  # rack 0 is the middle: every other rack has a veth to it
                a, b = f"sp{r}a", f"sp{r}b"
                _batch(
                    self.sw,
                    [
                        f"link add {a} {mtu} type veth peer name {b} {mtu}",
                        f"link set {a} master br0 up",
                        f"link set {b} master br{r} up",
                    ],
                )
            if self.spine_rate:
                self.set_spine_rate(self.spine_rate)
            for h in range(self.hosts):
                ns = self.ns(h)
                _ip("netns", "add", ns)
                address = f"{self.ip(h)}/64 dev eth0 nodad" if self.ipv6 else f"{self.ip(h)}/16 dev eth0"
                _batch(
                    ns,
                    [
                        f"link add eth0 {mtu} type veth peer name h{h} {mtu} netns {self.sw}",
                        "link set lo up",
                        f"addr add {address}",
                        "link set eth0 up",
                    ],
                )
                if self.rate:
                    self._shape(ns, "eth0", self.rate)
                os.makedirs(f"{RUN}/{ns}", exist_ok=True)
                subprocess.run(["mount", "-t", "tmpfs", "none", f"{RUN}/{ns}"], check=True)
                self.write_hosts_file(h, "".join(f"{self.ip(i)} h{i}\n" for i in range(self.hosts)))
            _batch(self.sw, [f"link set h{h} master br{self.rack(h)} up" for h in range(self.hosts)])
            if self.rate:
                _batch(
                    self.sw,
                    [f"qdisc add dev h{h} root {self._tbf(self.rate)}" for h in range(self.hosts)],
                    tool="tc",
                )
        except BaseException:
            self.down()
            raise
        return self

    def write_hosts_file(self, host: int, lines: str) -> None:
        """What host finds names in; processes see it that start afterwards."""
        # `ip netns exec` bind-mounts this over /etc/hosts
        folder = f"/etc/netns/{self.ns(host)}"
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/hosts", "w") as f:
            f.write("127.0.0.1 localhost\n::1 localhost\n" + lines)

    def down(self) -> None:
        for p in self._procs:
            if p.poll() is None:
                p.kill()
        destroy(self.name)
        for p in self._procs:
            p.wait()
        self._procs.clear()

    __enter__ = up

    def __exit__(self, *exc) -> None:
        self.down()

    # -- rates and faults ----------------------------------------------------------------------
    def _shape(self, ns: str, dev: str, rate: int | None) -> None:
        _ip("qdisc", "del", "dev", dev, "root", ns=ns, tool="tc", check=False)
        if rate:
            _ip("qdisc", "add", "dev", dev, "root", *self._tbf(rate).split(), ns=ns, tool="tc")

    def _tbf(self, rate: int) -> str:
        # burst: burst_ms of the rate, at least one 64 KiB GSO frame (smaller: the frame is split in
        # software, and CPU, not tbf, is the limit). A message below the burst passes unshaped;
        # a smaller burst loses more of the rate when the machine's cores are busy.
        # limit: the queue in front of the link, queue_ms of it, at least 256 KiB.
        burst = max(int(rate / 8 * self.burst_ms / 1000), 80_000)
        limit = max(int(rate / 8 * self.queue_ms / 1000), 256 * 1024)
        return f"tbf rate {rate}bit burst {burst} limit {limit + burst}"

    def set_rate(self, host: int, rate: str | int | None) -> None:
        """Limit host's link, each direction by itself. None: unlimited."""
        bits = parse_rate(rate)
        self._shape(self.ns(host), "eth0", bits)  # what it sends
        self._shape(self.sw, f"h{host}", bits)  # what it receives

    def set_spine_rate(self, rate: str | int | None) -> None:
        for r in range(1, self.racks):
            for end in "ab":
                self._shape(self.sw, f"sp{r}{end}", parse_rate(rate))

    def link(self, host: int, up: bool) -> None:
        """Plug or pull host's cable (the switch's end goes down: no RST, no FIN, just silence)."""
        _ip("link", "set", f"h{host}", "up" if up else "down", ns=self.sw)

    def partition(self, a: int, b: int) -> None:
        """Silently drop what a and b send each other (to a MAC address of nobody); the rest still flows."""
        for x, y in ((a, b), (b, a)):
            _ip(
                "neigh",
                "replace",
                self.ip(y),
                "lladdr",
                "02:00:00:00:00:01",
                "dev",
                "eth0",
                "nud",
                "permanent",
                ns=self.ns(x),
            )

    def heal(self, a: int, b: int) -> None:
        for x, y in ((a, b), (b, a)):
            _ip("neigh", "del", self.ip(y), "dev", "eth0", ns=self.ns(x), check=False)

    def pids(self, host: int) -> list[int]:
        """The processes of a host (to kill or stop them)."""
        return [int(p) for p in _ip("netns", "pids", self.ns(host), check=False).split()]

    def bytes_sent(self, host: int) -> int:
        """Bytes that host has put on its link so far (frames; reads the device's counter)."""
        return int(_ip("netns", "exec", self.ns(host), "cat", "/sys/class/net/eth0/statistics/tx_bytes"))

    def spine_bytes(self) -> int:
        """Bytes sent over the spine so far, both directions together."""
        out = _ip(
            "netns",
            "exec",
            self.sw,
            "sh",
            "-c",
            "cat /sys/class/net/sp*/statistics/tx_bytes 2>/dev/null || echo 0",
        )
        return sum(map(int, out.split()))

    # -- running things ------------------------------------------------------------------------
    def command(self, host: int, argv: list[str]) -> list[str]:
        return exec_command(self.ns(host), argv)

    def env(self, rank: int, per_host: int = 1, port: int = MASTER_PORT) -> dict[str, str]:
        """torch's env:// variables for a rank (ranks are dealt host by host)."""
        h = rank // per_host
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.hosts * per_host),
            "LOCAL_RANK": str(rank % per_host),
            "LOCAL_WORLD_SIZE": str(per_host),
            "MASTER_ADDR": self.ip(0),
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "eth0",
            "NETLAB_HOST": str(h),
            "NETLAB_HOSTS": str(self.hosts),
            "NETLAB_RACK": str(self.rack(h)),
            "NETLAB_IP": self.ip(h),
        }

    def popen(self, host: int, argv: list[str], env: dict[str, str] | None = None, **kw) -> subprocess.Popen:
        p = subprocess.Popen(self.command(host, argv), env={**os.environ, **(env or {})}, **kw)
        self._procs.append(p)
        return p

    def check_output(self, host: int, argv: list[str], timeout: float = 60, **kw) -> str:
        return subprocess.run(
            self.command(host, argv), check=True, stdout=subprocess.PIPE, text=True, timeout=timeout, **kw
        ).stdout

    def run_all(
        self,
        argv,
        per_host: int = 1,
        env=None,
        timeout: float = 120.0,
        prefix: bool = False,
        port: int = MASTER_PORT,
    ) -> list[int]:
        """Run argv (a list, or rank -> list) as rank 0..N*per_host-1; the exit codes, rank by rank.
        What has not ended after timeout seconds is killed (its code is -9)."""
        procs, pumps = [], []
        for rank in range(self.hosts * per_host):
            a = argv(rank) if callable(argv) else argv
            e = self.env(rank, per_host, port)
            e.update((env(rank) if callable(env) else env) or {})
            p = self.popen(
                rank // per_host,
                a,
                env=e,
                **({"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True} if prefix else {}),
            )
            procs.append(p)
            if prefix:
                t = threading.Thread(target=_print_marked, args=(p, rank), daemon=True)
                t.start()
                pumps.append(t)
        end = time.monotonic() + timeout
        for p in procs:
            try:
                p.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                p.kill()
        codes = [p.wait() for p in procs]
        for t in pumps:
            t.join(1)
        return codes


def _print_marked(process: subprocess.Popen, rank: int) -> None:
    for line in process.stdout:
        print(f"[{rank}] {line}", end="", flush=True)


def main() -> int:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = ap.add_subparsers(dest="what", required=True)
    for what in ("run", "up"):
        p = sub.add_parser(what)
        p.add_argument("--name")
        p.add_argument("--hosts", type=int, default=4)
        p.add_argument("--racks", type=int, default=1)
        p.add_argument("--rate", default="1gbit", help="each host's link, per direction; 'none': unlimited")
        p.add_argument("--spine", help="between racks, per direction (default: as --rate)")
        p.add_argument("--mtu", type=int, default=1500)
        if what == "run":
            p.add_argument("--per-host", type=int, default=1)
            p.add_argument("--timeout", type=float, default=120)
            p.add_argument("--prefix", action="store_true", help="mark each output line with its rank")
            p.add_argument("cmd", nargs=argparse.REMAINDER)
    p = sub.add_parser("exec")
    p.add_argument("--name", required=True)
    p.add_argument("host", type=int)
    p.add_argument("cmd", nargs=argparse.REMAINDER)
    p = sub.add_parser("down")
    g = p.add_mutually_exclusive_group(required=True)
    g.add_argument("--name")
    g.add_argument("--all", action="store_true")
    a = ap.parse_args()
    if os.geteuid():
        ap.error("needs root")
    cmd = [c for i, c in enumerate(getattr(a, "cmd", [])) if not (i == 0 and c == "--")]
    if a.what == "down":
        destroy(None if a.all else a.name)
        return 0
    if a.what == "exec":
        os.execvp("ip", exec_command(f"{PREFIX}-{a.name}-h{a.host}", cmd))
    lab = Lab(a.hosts, a.rate, a.racks, a.spine, a.name, a.mtu)
    if a.what == "up":
        if not a.name:
            ap.error("up needs --name")
        lab.up()
        print("\n".join(f"h{h} rack {lab.rack(h)} {lab.ip(h)} ns {lab.ns(h)}" for h in range(lab.hosts)))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with lab:
        codes = lab.run_all(cmd, a.per_host, timeout=a.timeout, prefix=a.prefix)
    if any(codes):
        print(f"exit codes {codes}", file=sys.stderr)
    return next((c if c > 0 else 1 for c in codes if c), 0)


if __name__ == "__main__":
    sys.exit(main())
