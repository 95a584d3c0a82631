"""A device of torch's with streams, events and graphs, and pycoll's CUDA interface on it, all on the host:
what the backend does with CUDA tensors can be tested, and its mistakes in ordering caught, without a GPU."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from pathlib import Path

from pycoll.torch import build

FOLDER = Path(__file__).parent


def library() -> Path:
    """The compiled module, beside the backend's compiled adapter; compiled if it is not there."""
    sources = sorted(FOLDER.glob("*.cpp"))
    headers = [FOLDER / "streams.h", *sorted((build.source_directory() / "cuda").glob("*.h"))]
    digest = hashlib.sha256(build._key().encode() + b"".join(p.read_bytes() for p in [*sources, *headers]))
    target = build.cache_directory() / f"fake_gpu-{digest.hexdigest()[:16]}.so"
    with build._locked(target.with_suffix(".lock"), float("inf")):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent) as folder:
                unit, output = Path(folder) / "fake_gpu_unit.cpp", Path(folder) / "fake_gpu.so"
                unit.write_text("".join(f'#include "{source}"\n' for source in sources))
                line = [word for word in build.command(unit, output) if word != "-O2"]
                subprocess.run([*line, "-O0", "-I", str(FOLDER), "-lrt"], check=True)
                output.rename(target)
    return target


def set_up(path: str) -> None:
    """In a rank's process: makes the device "fakegpu" and the backend "pycoll_fake", and the module
    `fake_gpu`, whose `missing` is what the backend is told to be missing."""
    import ctypes
    import functools
    import importlib.machinery
    import importlib.util
    import sys
    import types

    import torch
    import torch.distributed as dist

    from pycoll.errors import Unsupported
    from pycoll.torch import build, creation

    if "fake_gpu" in sys.modules:
        return
    ctypes.CDLL(str(build.library()))
    loader = importlib.machinery.ExtensionFileLoader("fake_gpu", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("fake_gpu", loader))
    loader.exec_module(module)
    module.missing = ""
    sys.modules["fake_gpu"] = module

    class FakeAccelerator:
        device_type = "fakegpu"

        def library(self) -> str:
            if module.missing:
                raise Unsupported(module.missing)
            return path

        def stream_handle(self, stream_id: int, device_index: int, device_type: int) -> int:
            return module.stream_handle(stream_id)

        def place(self, device: int) -> str:
            return "Fake GPU\n0"

        def ways(self, places: list[str]) -> str:
            from pycoll.torch import gpu_ways

            return gpu_ways.table(places)

    device = types.ModuleType("torch.fakegpu")
    device.is_available = lambda: True
    device.is_initialized = lambda: True
    device.device_count = lambda: 2
    device.current_device = module.current_device
    device.set_device = module.set_device
    device._is_in_bad_fork = lambda: False
    device.manual_seed_all = lambda seed: None
    device.get_amp_supported_dtype = lambda: []
    torch.utils.rename_privateuse1_backend("fakegpu")
    torch._register_device_module("fakegpu", device)
    module.register_hooks()
    dist.Backend.register_backend(
        "pycoll_fake",
        functools.partial(creation.create, accelerator=FakeAccelerator()),
        extended_api=True,
        devices=["cpu", "fakegpu"],
    )
