"""What was measured over several hosts, as tables, Markdown and JSON."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from across.setups import KIB, MIB, Setup, Target

BEGIN, END = "<!-- many hosts -->", "<!-- end of many hosts -->"


@dataclass
class Result:
    setup: Setup
    bounds: dict[int, float]  # seconds, by size
    engines: list[str]
    times: dict[tuple[str, int], list[float]] = field(default_factory=dict)  # slowest rank's, a sample each
    sent: dict[tuple[str, int], float] = field(default_factory=dict)  # by the busiest host, medians

    def median(self, engine: str, size: int) -> float:
        return statistics.median(self.times[engine, size])

    def share(self, engine: str, size: int) -> float:
        return self.bounds[size] / self.median(engine, size)

    def ratio(self, engine: str, size: int, over: str) -> float:
        return self.median(over, size) / self.median(engine, size)

    def traffic(self, engine: str, size: int) -> float:
        """Bytes on the busiest host's link, as a multiple of the least any host must send."""
        hosts = self.setup.hosts
        return self.sent[engine, size] / (2 * (hosts - 1) / hosts * size)

    def verdicts(self) -> list[tuple[str, bool]]:
        found = []
        for target in self.setup.targets:
            ours = [name for name in self.engines if name.startswith("pycoll")]
            if self.setup.topologies:  # the user has said what the network is, or had it probed
                ours = [name for name in ours if name != "pycoll"]
            for engine in ours:
                verdict = self._verdict(engine, target)
                if verdict is not None:
                    found.append(verdict)
        return found

    def _verdict(self, engine: str, target: Target) -> tuple[str, bool] | None:
        if (engine, target.size) not in self.times:
            return None
        at = f"{engine} at {size_name(target.size)}"
        if target.of_bound:
            share = self.share(engine, target.size)
            return f"{at}: {share:.3f} of the bound (target {target.of_bound:g})", share >= target.of_bound
        if target.traffic:
            traffic = self.traffic(engine, target.size)
            said = f"{at}: {traffic:.3f} times the least bytes on a host's link (target {target.traffic:g})"
            return said, traffic <= target.traffic
        if (target.over, target.size) not in self.times:
            return None
        ratio = self.ratio(engine, target.size, target.over)
        said = f"{at}: {ratio:.2f} times as fast as {target.over} (target {target.ratio:g})"
        return said, ratio >= target.ratio


def size_name(size: int) -> str:
    if size >= MIB:
        return f"{size // MIB} MiB"
    return f"{size // KIB} KiB" if size >= KIB else f"{size} B"


def time_name(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-2 else f"{seconds * 1e6:.0f} us"


def table(result: Result) -> list[list[str]]:
    """A heading and a row an engine and size."""
    rows = [["size", "library", "median", "of the bound", "gloo / this", "bytes a host / least", "samples"]]
    for size in result.setup.sizes:
        for engine in result.engines:
            over_gloo = f"{result.ratio(engine, size, 'gloo'):.2f}" if "gloo" in result.engines else "-"
            large = size >= MIB
            rows.append(
                [
                    size_name(size),
                    engine,
                    time_name(result.median(engine, size)),
                    f"{result.share(engine, size):.3f}" if large else "-",
                    over_gloo,
                    f"{result.traffic(engine, size):.3f}" if large else "-",
                    str(len(result.times[engine, size])),
                ]
            )
    return rows


def markdown(results: list[Result], stamp: dict[str, str], command: str) -> str:
    lines = [
        BEGIN,
        "# AllReduce over several hosts",
        "",
        "Written by `benchmarks/hosts.py`; what is measured, and how: "
        "[README.md](README.md#over-several-hosts).",
        "",
        *(f"- {name}: {value}" for name, value in stamp.items()),
        f"- command: `{command}`",
        "",
        "The slowest rank's time, float32, sum, in place, medians; all libraries in the same processes, in "
        "turns. *Of the bound*: the least time that any algorithm could take at TCP's share of the links "
        "(0.956), divided by the time. ✓ and ✗: the target is met or missed.",
    ]
    for result in results:
        heading, *rows = table(result)
        lines += ["", f"## {result.setup.title}", ""]
        bounds = ", ".join(
            f"{size_name(size)} {time_name(bound)}" for size, bound in result.bounds.items() if size >= MIB
        )
        lines += [f"Bound: {bounds}.", "", "| " + " | ".join(heading) + " |"]
        lines += ["| --: | --- | --: | --: | --: | --: | --: |"]
        lines += ["| " + " | ".join(cells) + " |" for cells in rows]
        lines += ["", *(f"- {'✓' if met else '✗'} {said}" for said, met in result.verdicts())]
    return "\n".join([*lines, END, ""])


def as_dict(result: Result) -> dict[str, Any]:
    return {
        "setup": result.setup.name,
        "title": result.setup.title,
        "bounds": {str(size): bound for size, bound in result.bounds.items()},
        "rows": [
            {"engine": engine, "size": size, "seconds": times, "sent": result.sent[engine, size]}
            for (engine, size), times in result.times.items()
        ],
        "verdicts": [{"text": said, "met": met} for said, met in result.verdicts()],
    }
