"""The device that the backend serves beside the CPU: where its library is, and what torch knows of its
streams. The compiled adapter asks when the first of its tensors comes."""

from __future__ import annotations

from typing import Any, Protocol

from pycoll.errors import Unsupported


class Accelerator(Protocol):
    device_type: str  # torch's name of it

    def library(self) -> str:
        """Path of a library with csrc/cuda/api.h's interface. Raises Unsupported with what is missing."""

    def stream_handle(self, stream_id: int, device_index: int, device_type: int) -> int:
        """The cudaStream_t of one of torch's streams."""

    def place(self, device: int) -> str:
        """What rank 0's :meth:`ways` is told of this rank's device."""

    def ways(self, places: list[str]) -> str:
        """Which way an all_reduce goes, by size: see :func:`pycoll.torch.gpu_ways.table`. Asked on rank 0."""


class Cuda:
    device_type = "cuda"

    def library(self) -> str:
        from pycoll import _cuda_library

        if reason := _cuda_library.why_not():
            raise Unsupported(
                f'{reason}. Or give CUDA tensors to NCCL: init_process_group("cpu:pycoll,cuda:nccl")'
            )
        return str(_cuda_library.library_path())

    def stream_handle(self, stream_id: int, device_index: int, device_type: int) -> int:
        import torch

        make: Any = torch.cuda.Stream
        stream = make(stream_id=stream_id, device_index=device_index, device_type=device_type)
        return int(stream.cuda_stream)

    def place(self, device: int) -> str:
        from pycoll.torch import gpu_ways

        return gpu_ways.place_of(device)

    def ways(self, places: list[str]) -> str:
        from pycoll.torch import gpu_ways

        return gpu_ways.table(places)


CUDA = Cuda()
