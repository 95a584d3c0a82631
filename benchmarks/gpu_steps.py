"""The steps of gpu_check.py, each run as a process of its own: python gpu_steps.py STEP FILE SECONDS

What a step finds it writes into FILE, bit by bit: ``wrong`` (sentences), ``rows`` (of its table), ``notes``.
After SECONDS a step that is still running says where, and goes on until it is ended.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from gpu_found import Found, nccl_version, spawned
from gpu_kernels import check_rank, kernels_right, nvls, pools, processes_right
from gpu_times import against_nccl, bandwidth, latency, lateness

#: Seconds for all runs of sanitizers.
SANITIZERS_LIMIT = 100.0


def main() -> None:
    name, path, seconds = sys.argv[1:4]
    faulthandler.enable()
    faulthandler.dump_traceback_later(float(seconds))
    found = Found(None if path == "-" else Path(path))
    STEPS[name](found)
    found.save()
    sys.stdout.flush()
    if not name.startswith("sanitized"):  # a sanitizer reports at the end
        os._exit(0)  # not through the destructors of whatever a step has loaded: what counts is written


def facts(found: Found) -> None:
    """What there is; ``reason`` says why nothing can be checked."""
    try:
        from pycoll import cuda
    except ImportError as error:
        found["reason"] = f"pycoll is not there: {error}"
        return
    found["pycoll"] = cuda.__file__
    found["reason"] = cuda.why_not()
    if found["reason"]:
        return
    device = cuda.devices()[0]
    found["gpu"] = device.name
    found["gpus"] = len(cuda.devices())
    found["multiprocessors"] = device.multiprocessors
    found["capability"] = ".".join(map(str, device.capability))
    found.save()
    for module in ("torch", "cupy"):
        try:
            found[module] = import_module(module).__version__
        except Exception as error:
            found[module] = f"{type(error).__name__}: {error}"
    found["NCCL"] = nccl_version() or "none"
    if smi := shutil.which("nvidia-smi"):
        asked = "driver_version,compute_mode,mig.mode.current"
        said = subprocess.run(
            [smi, f"--query-gpu={asked}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        found["driver, compute mode, MIG"] = said.stdout.strip()


SANITIZED = (("bfloat16",), ("sum",), (1031,), ("one_shot", "two_shot", "ring"), 2)


def sanitized(found: Found, threads: bool) -> None:
    for wrong in spawned(check_rank, 2, *SANITIZED, threads=threads):
        found.wrong(wrong)
    if found["wrong"]:
        raise SystemExit("\n".join(found["wrong"]))


def sanitizers(found: Found) -> None:
    """compute-sanitizer's memcheck and racecheck on a small case: ranks as threads, or, should the tool let
    no two kernels run at once, as processes."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        found.wrong(["there is no compute-sanitizer"])
        return
    end = time.monotonic() + SANITIZERS_LIMIT
    ways = ["threads", "processes"]
    for kind in ("memcheck", "racecheck"):
        for ranks_are in list(ways):
            limit = max(5.0, min(45.0, end - time.monotonic()))
            # Not what the driver refuses: whether it has fabric handles is found out by asking for one.
            command = [tool, "--tool", kind, "--error-exitcode", "9", "--report-api-errors", "no"]
            command += ["--target-processes", "all", sys.executable, __file__, f"sanitized {ranks_are}"]
            try:
                run = subprocess.run(
                    [*command, "-", "60"], capture_output=True, text=True, timeout=limit, check=False
                )
            except subprocess.TimeoutExpired as error:
                said = b"".join(part for part in (error.stdout, error.stderr) if isinstance(part, bytes))
                found[f"{kind}, {ranks_are}"] = said[-1500:].decode(errors="replace")
                found.note(f"{kind}, ranks as {ranks_are}: not done in {limit:.0f} s")
                ways.remove(ranks_are)  # nor will the other tool be
                continue
            found[f"{kind}, {ranks_are}"] = text = (run.stdout + run.stderr)[-1500:]
            if run.returncode == 0:
                found.note(f"{kind}, ranks as {ranks_are}: clean")
            else:
                last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
                found.wrong([f"{kind}, ranks as {ranks_are}: exit code {run.returncode}: {last}"])
            break
        else:
            found.wrong([f"{kind}: not done in time"])


def torch_distributed(found: Found) -> None:
    """CUDA tensors through the torch backend: collectives, streams, graphs, DDP. Ranks are processes."""
    from gpu_torch import torch_right

    torch_adapter(found)
    found.wrong(torch_right(60)["wrong"])


def torch_adapter(found: Found) -> None:
    """Compiled against this torch, be it one of those supported or not."""
    from gpu_torch import try_this_torch

    if text := try_this_torch():
        found.note(text)
    from pycoll.torch import build

    build.compiled(timeout=80)


STEPS: dict[str, Callable[[Found], None]] = {
    "facts": facts,
    "kernels right": kernels_right,
    "bandwidth": bandwidth,
    "latency": latency,
    "against NCCL": against_nccl,
    "late rank": lateness,
    "processes right": processes_right,
    "sanitizers": sanitizers,
    "sanitized threads": lambda found: sanitized(found, True),
    "sanitized processes": lambda found: sanitized(found, False),
    "torch adapter": torch_adapter,
    "torch.distributed": torch_distributed,
    "pools": pools,
    "NVLS": nvls,
}

if __name__ == "__main__":
    main()
