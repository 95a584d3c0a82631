"""Where and when a measurement was made: the stamp that every row carries."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from datetime import datetime, timezone
from pathlib import Path

Stamp = dict[str, str | int]


def cpu_model() -> str:
    for line in _lines("/proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()
    return platform.processor() or platform.machine()


def usable_cpus() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0))


def cpu_quota() -> float | None:
    """Processors' worth of time that the control group allows; None where it sets no limit."""
    limits = []
    for folder in _control_groups():
        fields = " ".join(_lines(f"/sys/fs/cgroup{folder}/cpu.max")).split()
        if len(fields) == 2 and fields[0] != "max":
            limits.append(int(fields[0]) / int(fields[1]))
    quota, period = (
        " ".join(_lines(f"/sys/fs/cgroup/cpu/cpu.cfs_{what}_us")) for what in ("quota", "period")
    )
    if quota and period and int(quota) > 0:
        limits.append(int(quota) / int(period))
    return min(limits, default=None)


def available_memory() -> int:
    """Bytes that programs could still be given, by the machine and by this process' control group."""
    left = []
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            left.append(int(line.split()[1]) * 1024)
    for folder in _control_groups():
        limit, used = (
            " ".join(_lines(f"/sys/fs/cgroup{folder}/memory.{what}")) for what in ("max", "current")
        )
        if limit.isdigit() and used.isdigit():
            left.append(max(int(limit) - int(used), 0))
    return min(left, default=sys.maxsize)


def version(package: str) -> str:
    """The installed version of a package, without importing it; "" where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def stamp(ranks: int) -> Stamp:
    """Date, machine and versions."""
    from pycoll import _core

    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cpus": usable_cpus(),
        "kernel": platform.release(),
        "vector_kernels": _core.kernel_name(),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "torch": version("torch"),
        "pycoll": version("pycoll"),
        "ranks": ranks,
        "command": " ".join(["pycoll", *sys.argv[1:]]),
    }


def _control_groups() -> list[Path]:
    """This process' control group and those it lies in, as folders below the file system of groups."""
    group = next((line.split("::")[1] for line in _lines("/proc/self/cgroup") if line.startswith("0::")), "/")
    return [Path(group), *Path(group).parents]


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
