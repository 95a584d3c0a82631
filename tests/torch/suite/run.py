"""Run the tests for one backend and world size in this process; see __main__."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any


class _Results(unittest.TestResult):
    def __init__(self, verbose: bool, path: Path) -> None:
        super().__init__()
        self.verbose = verbose
        self.json = path
        self.rows: list[dict[str, Any]] = []
        self.began = 0.0
        self.reason_file = Path(os.environ["PYCOLL_SUITE_REASON"])

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.reason_file.unlink(missing_ok=True)
        self.began = time.monotonic()

    def note(self, test: unittest.TestCase, outcome: str, detail: str = "") -> None:
        name = test.id().rsplit(".", 1)[-1]
        seconds = round(time.monotonic() - self.began, 1)
        self.rows.append({"test": name, "outcome": outcome, "detail": detail, "seconds": seconds})
        self.json.write_text(json.dumps(self.rows, indent=1))  # so that little is lost with an interrupt
        if self.verbose:
            head = detail.strip().splitlines()[0][:150] if detail.strip() else ""
            print(f"{outcome:8} {seconds:6.1f} s  {name}  {head}", flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        self.note(test, "passed")

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.note(test, "passed", "fails, as the suite expects")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self.note(test, "failed", "passes, which the suite does not expect")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self.note(test, "failed", str(err[1]))

    addError = addFailure

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        if self.reason_file.exists():
            reason = self.reason_file.read_text()
        self.note(test, "skipped", reason)


def names(only: list[str]) -> list[str]:
    import re

    from adapted import DistributedSuite

    found = unittest.TestLoader().getTestCaseNames(DistributedSuite)
    return [name for name in found if not only or any(re.search(pattern, name) for pattern in only)]


def main() -> None:
    options = json.loads(sys.argv[1])
    os.environ.update(BACKEND=options["backend"], WORLD_SIZE=str(options["world_size"]))
    os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", str(options["timeout"]))
    with tempfile.TemporaryDirectory() as directory:
        os.environ["PYCOLL_SUITE_REASON"] = str(Path(directory) / "reason")
        import torch
        import torch._dynamo  # a rank that needs it has it from here

        if options["backend"] == "pycoll":
            from pycoll.torch import build

            build.compiled()  # not within a test's time
        torch.set_num_threads(1)
        sys.path.insert(0, str(Path(__file__).parent))  # PYTHONSAFEPATH leaves it out
        from adapted import DistributedSuite

        index, count = options["shard"]
        results = _Results(options["verbose"], Path(options["json"]))
        results.json.write_text("[]")
        for name in names(options["only"])[index::count]:
            DistributedSuite(name).run(results)


if __name__ == "__main__":
    main()
