"""torch's own tests of a backend, `torch.testing._internal.distributed.distributed_test`, for any backend.

That module decides at its import, by the environment's BACKEND and WORLD_SIZE, which tests there are, many
only for a backend called "gloo". Here a backend other than torch's own answers to "gloo" as well, so that it
is asked for everything gloo is asked for; and what names gloo to make a group, makes one of this backend.

Importing this module reads BACKEND and WORLD_SIZE.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from types import ModuleType
from typing import Any

import torch.testing._internal.common_distributed as common

SUITE = "torch.testing._internal.distributed.distributed_test"
REASON_FILE = "PYCOLL_SUITE_REASON"


class AsGloo(str):
    """A backend's name that passes for gloo's too, wherever a test looks for that."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("gloo")  # so that it is in the sets of backends that have a feature


# What of the suite's text says "gloo" and means the backend under test; one expectation that no backend but
# torch's own can meet, for torch's C++ calls every other one "custom" in DDP's log; and tests of all_to_all
# on CPUs, which the suite asks of MPI only.
REPLACED = {
    'BACKEND = os.environ["BACKEND"]': "BACKEND = _backend_under_test()",
    "backend=dist.Backend.GLOO": "backend=str(BACKEND)",
    'ddp_logging_data.get("backend_name"), dist.get_backend(group_id)': (
        'ddp_logging_data.get("backend_name"), "custom"'
    ),
    'BACKEND != "mpi", "Only MPI supports': 'False, "Only MPI supports',
}


def load() -> ModuleType:
    backend = os.environ["BACKEND"]
    if backend == "gloo":
        return importlib.import_module(SUITE)
    spec = importlib.util.find_spec(SUITE)
    assert spec is not None
    assert spec.origin is not None
    with open(spec.origin) as file:
        text = file.read()
    for old, new in REPLACED.items():
        if old not in text:
            raise RuntimeError(f"{spec.origin} has no {old!r} any more: adapted.py must follow this torch")
        text = text.replace(old, new)
    module = importlib.util.module_from_spec(spec)
    module.__dict__["_backend_under_test"] = lambda: AsGloo(backend)
    common.DistTestCases.backend_feature["plugin"].add(backend)
    sys.modules[SUITE] = module
    exec(compile(text, spec.origin, "exec", dont_inherit=True), module.__dict__)
    for profiled in [
        "PROFILING_SUPPORTED_BACKENDS",
        "CUDA_PROFILING_SUPPORTED_BACKENDS",
        "SEND_RECV_PROFILING_SUPPORTED_BACKENDS",
    ]:
        getattr(module, profiled).append(backend)
    return module


class _NoteReason(logging.Handler):
    """A test that skips itself within a rank says why only to the log: keep it."""

    def emit(self, record: logging.LogRecord) -> None:
        if "following reason" in record.msg and isinstance(record.args, tuple):
            with open(os.environ[REASON_FILE], "w") as file:
                file.write(str(record.args[2]))


suite = load()


class DistributedSuite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):  # type: ignore[misc, name-defined]
    """The suite's tests, each in processes forked from this one, which has imported torch for all of them."""

    def setUp(self) -> None:
        super().setUp()
        import torch.multiprocessing

        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, pipe: Any, **kwargs: Any) -> None:
        common.logger.addHandler(_NoteReason())
        common.logger.setLevel(logging.INFO)
        common.logger.propagate = False
        common.logger.addHandler(logging.StreamHandler())
        super()._run(rank, test_name, file_name, pipe, **kwargs)


def _module_level_cases() -> list[type]:
    """The suite's few test cases that make no group."""
    import unittest

    return [
        value
        for value in vars(suite).values()
        if isinstance(value, type)
        and issubclass(value, unittest.TestCase)
        and value.__module__ == SUITE
        and value is not suite.TestDistBackend
    ]
