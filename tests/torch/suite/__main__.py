"""torch's own tests of a distributed backend, run against pycoll and against gloo.

    python tests/torch/suite                     # both backends, two ranks: about three minutes
    python tests/torch/suite --backend pycoll --world-size 3 --only 'all_reduce' --verbose
    python tests/torch/suite --backend pycoll --shard 1/4 --json part1.json
    python tests/torch/suite --read gloo.json pycoll.json     # only print what such files say

Prints, for each backend, how many tests passed, failed and were skipped; each reason for skipping with the
number of its tests (`--skips`: with their names); each test that failed; and, with both backends, each test
that passes with gloo only. Exit status 1 if there is such a test, or with one backend if a test failed.
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


def run(backend: str, options: argparse.Namespace) -> Rows:
    with tempfile.TemporaryDirectory() as directory:
        rows = Path(directory) / "rows.json"
        index, count = (int(part) for part in options.shard.split("/"))
        request = {
            "backend": backend,
            "world_size": options.world_size,
            "only": options.only,
            "shard": [index - 1, count],
            "timeout": options.timeout,
            "verbose": options.verbose,
            "json": str(rows),
        }
        log = Path(options.log or Path(directory) / "log")
        with log.open("a") as stderr:
            done = subprocess.run(
                [sys.executable, str(Path(__file__).with_name("run.py")), json.dumps(request)],
                stderr=stderr, check=False,
            )  # fmt: skip
        if done.returncode != 0:
            sys.exit(f"the run ended with status {done.returncode}; it said\n{log.read_text()[-3000:]}")
        result: Rows = json.loads(rows.read_text())
        return result


def cause(detail: str) -> str:
    """The line of a test's report that names its first rank's exception."""
    lines = [line for line in detail.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return lines[min(1, len(lines) - 1)] if lines else detail[-200:]


def report(reports: dict[str, Rows], with_names: bool) -> bool:
    """Print it; whether all is well."""
    well = True
    for backend, rows in reports.items():
        counts = collections.Counter(row["outcome"] for row in rows)
        seconds = sum(row["seconds"] for row in rows)
        print(
            f"{backend}: {counts['passed']} passed, {counts['failed']} failed, "
            f"{counts['skipped']} skipped of {len(rows)} in {seconds / 60:.0f} min"
        )
        for reason, tests in skips_by_reason(rows):
            print(f"  {len(tests):3} skipped: {reason}")
            if with_names:
                print("".join(f"        {test}\n" for test in tests), end="")
        for row in rows:
            if row["outcome"] == "failed":
                print(f"  FAILED {row['test']}: {cause(row['detail'])}")
                well = well and len(reports) > 1
    if len(reports) > 1:
        passed = {
            backend: {row["test"] for row in rows if row["outcome"] == "passed"}
            for backend, rows in reports.items()
        }
        others = {backend: tests for backend, tests in passed.items() if backend != "gloo"}
        for backend, tests in others.items():
            missing = sorted(passed.get("gloo", set()) - tests)
            print(f"{len(missing)} tests pass with gloo and not with {backend}" + ":" * bool(missing))
            print("".join(f"  {test}\n" for test in missing), end="")
            more = sorted(tests - passed.get("gloo", set()))
            print(f"{len(more)} tests pass with {backend} and not with gloo" + ":" * bool(more))
            print("".join(f"  {test}\n" for test in more), end="")
            well = well and not missing
    return well


def skips_by_reason(rows: Rows) -> list[tuple[str, list[str]]]:
    """The most frequent first."""
    reasons: dict[str, list[str]] = collections.defaultdict(list)
    for row in rows:
        if row["outcome"] == "skipped":
            reasons[row["detail"].strip()].append(row["test"])
    return sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))


def markdown(reports: dict[str, Rows], world_size: int) -> str:
    """The counts, and each test that was skipped under its reason."""
    import torch

    lines = [
        "# torch's own tests of a backend: what ran and what did not",
        "",
        f"Made by `python tests/torch/suite --world-size {world_size} --markdown docs/torch_suite.md`, with "
        f"torch {torch.__version__}. What it means stands in [torch.md](torch.md#torchs-own-tests).",
        "",
        f"| {world_size} ranks | passed | failed | skipped |",
        "|---|---|---|---|",
    ]
    for backend, rows in reports.items():
        counts = collections.Counter(row["outcome"] for row in rows)
        lines.append(f"| {backend} | {counts['passed']} | {counts['failed']} | {counts['skipped']} |")
    for backend, rows in reports.items():
        lines += ["", f"## Skipped with {backend}", "", "| reason | number | tests |", "|---|---|---|"]
        for reason, tests in skips_by_reason(rows):
            lines.append(f"| {reason} | {len(tests)} | {', '.join(tests)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python tests/torch/suite",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backend", default="gloo,pycoll", help="names, comma-separated (%(default)s)")
    parser.add_argument("--world-size", type=int, default=2, help="ranks of a test (%(default)s)")
    parser.add_argument(
        "--only", action="append", default=[], help="tests whose name matches; may be repeated"
    )
    parser.add_argument("--shard", default="1/1", help="of the tests, the i-th of n parts (i/n)")
    parser.add_argument("--timeout", type=int, default=120, help="seconds a test may take (%(default)s)")
    parser.add_argument("--json", help="write the results there: {backend: [{test, outcome, ...}]}")
    parser.add_argument("--log", help="append what the ranks say on stderr to this file")
    parser.add_argument("--verbose", action="store_true", help="a line as each test ends")
    parser.add_argument("--skips", action="store_true", help="name the tests that were skipped")
    parser.add_argument("--markdown", help="write counts and skips there, for the documentation")
    parser.add_argument("--read", nargs="+", default=[], help="run nothing: files of --json, merged")
    options = parser.parse_args()
    reports: dict[str, Rows] = collections.defaultdict(list)
    for path in options.read:
        for backend, rows in json.loads(Path(path).read_text()).items():
            reports[backend] += rows
    for backend in [] if options.read else options.backend.split(","):
        reports[backend] = run(backend, options)
        if options.json:
            Path(options.json).write_text(json.dumps(reports, indent=1))
    if options.markdown:
        Path(options.markdown).write_text(markdown(reports, options.world_size))
    return 0 if report(reports, options.skips) else 1


if __name__ == "__main__":
    sys.exit(main())
