"""Registers and spills of the CUDA kernels, as a table, from what a build of _cuda.so printed:

    cmake -S . -B build-cuda -DPYCOLL_PYTHON=OFF -DPYCOLL_CUDA=ON -DPYCOLL_CUDA_REPORT=ON
    cmake --build build-cuda --target _cuda 2>&1 | python benchmarks/gpu_registers.py

Exit code: 0 if no kernel spills, 1 if one does or none was found.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict

KINDS = {
    "schedule_kernel": "any schedule",
    "one_shot_kernel": "one-shot",
    "two_shot_kernel": "two-shot, reduce_scatter",
    "all_gather_packets": "all_gather",
    "nvls_kernel": "NVLS: allreduce, reduce_scatter",
    "nvls_all_gather": "NVLS: all_gather",
    "messages_kernel": "messages",
}
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\w+)'")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")


def main() -> int:
    registers: dict[tuple[str, str], list[int]] = defaultdict(list)
    frames: dict[tuple[str, str], int] = defaultdict(int)
    spilling = []
    kernel = ("", "")
    for line in sys.stdin:
        if found := ENTRY.search(line):
            kind = next((text for name, text in KINDS.items() if name in found[1]), "other")
            kernel = (kind, found[2])
        elif found := FRAME.search(line):
            frames[kernel] = max(frames[kernel], int(found[1]))
            if int(found[2]) or int(found[3]):
                spilling.append(f"{kernel[0]} for {kernel[1]}: {found[0]}")
        elif found := USED.search(line):
            registers[kernel].append(int(found[1]))
    print("| kernel | machine | variants | registers | stack, bytes | spills |")
    print("|---|---|---|---|---|---|")
    for (kind, machine), counts in sorted(registers.items()):
        spills = sum(text.startswith(f"{kind} for {machine}:") for text in spilling)
        print(
            f"| {kind} | {machine} | {len(counts)} | {min(counts)} to {max(counts)} "
            f"| {frames[kind, machine]} | {spills} |"
        )
    for text in spilling:
        print(text, file=sys.stderr)
    return 1 if spilling or not registers else 0


if __name__ == "__main__":
    sys.exit(main())
