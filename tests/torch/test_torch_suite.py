"""A small part of torch's own tests of a backend; `python tests/torch/suite` runs them all, beside gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# A test of each kind: collectives with profiling, groups, sparse, barriers, point to point, objects, DDP.
REPRESENTATIVE = [
    "test_all_reduce_sum",
    "test_all_reduce_coalesced_full_group_sum",
    "test_sparse_all_reduce_sum",
    "test_all_gather_coalesced_with_empty",
    "test_reduce_full_group_min",
    "test_all_to_all_single_unequal_split_complex",
    "test_barrier_timeout_full_group",
    "test_monitored_barrier_gloo",
    "test_batch_isend_irecv_gloo_tags",
    "test_send_recv_any_source_torch_profiler",
    "test_isend_autograd_profiler",
    "test_scatter_object_list",
    "test_ddp_logging_data_cpu",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_grads_same_across_ranks_with_no_sync",
]


def test_representative_tests_of_torchs_suite(tmp_path):
    pytest.importorskip("expecttest", reason="torch's tests need it")
    results = tmp_path / "results.json"
    only = [word for name in REPRESENTATIVE for word in ("--only", f"^{name}$")]
    suite = Path(__file__).with_name("suite")
    done = subprocess.run(
        [sys.executable, str(suite), "--backend", "pycoll", "--json", results, *only],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = {row["test"]: row["outcome"] for row in json.loads(results.read_text())["pycoll"]}
    assert outcomes == dict.fromkeys(REPRESENTATIVE, "passed")
