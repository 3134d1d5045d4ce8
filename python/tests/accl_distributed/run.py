"""PyTorch's own tests of torch.distributed (`DistributedTest`, from the wheel), served by ACCL.

    python run.py [--spawn] [--gloo] [test_name ...]        (default: all)

Many of those tests skip by the literal name of the backend, so they are run as what a user of Gloo
gets with LJTRAIN_ACCL=1. Every test process then asserts that ACCL served its groups and that Gloo
served none. The last line is JSON: the names of the tests that passed, failed, and were skipped.

Processes are forked (a second a test; `--spawn`, as upstream, takes five). `--gloo` runs the
stock backend and checks nothing: that is how gloo_passes.txt was made.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

STOCK = "--gloo" in sys.argv or os.environ.get("ACCL_DISTRIBUTED_STOCK") == "1"
SPAWN = "--spawn" in sys.argv or STOCK


def _prepare_environment() -> None:
    """DistributedTest reads its settings when it is imported, in the test processes too."""
    folder = Path(os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(prefix="accl_distributed_")))
    for name in ("barrier", "test_dir", "init_dir"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("BACKEND", "gloo")
    os.environ.setdefault("WORLD_SIZE", "3")
    os.environ.setdefault("INIT_METHOD", f"file://{folder / 'init_dir' / 'shared_init_file'}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if STOCK:
        os.environ["ACCL_DISTRIBUTED_STOCK"] = "1"
    else:
        os.environ["LJTRAIN_ACCL"] = "1"


_prepare_environment()

import torch  # noqa: E402
from torch import distributed  # noqa: E402
from torch.distributed import distributed_c10d  # noqa: E402
from torch.testing._internal.common_distributed import MultiProcessTestCase  # noqa: E402
from torch.testing._internal.distributed.distributed_test import (  # noqa: E402
    DistributedTest,
    TestDistBackend,
)

if not STOCK:
    # Autoload has done it if ljtrain is installed; from a source tree there is no entry point.
    from ljtrain import _C, accl, patches

    if "gloo" not in patches.STAND_IN:
        accl.activate()


def assert_served_by_accl() -> None:
    """In a test process, after its test: whatever was called was served by ACCL."""
    report = accl.report()
    groups = [group for group in distributed_c10d._world.pg_map if group is not None]
    assert report["groups"], "no group was made"
    assert not report["left_to_gloo"], report
    assert all(accl.is_served(group) for group in groups), groups
    dispatched = sum(entry["calls"] for entry in _C.communication_statistics().values())
    served = sum(sum(group["operations"].values()) for group in report["groups"])
    assert served > 0 or dispatched == 0, f"{dispatched} calls, none served: {report}"


class TestAccl(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self) -> None:
        super().setUp()
        if SPAWN:
            self._spawn_processes()
        else:
            self._start_processes(torch.multiprocessing.get_context("fork").Process)
        torch.backends.cudnn.flags(enabled=True, allow_tf32=False).__enter__()

    def run_test(self, test_name: str, parent_pipe: Any) -> None:
        if not STOCK:
            test = getattr(self, test_name)

            @functools.wraps(test)
            def checked() -> None:
                _C.communication_install()
                test()
                if distributed.is_initialized():
                    assert_served_by_accl()

            setattr(self, test_name, checked)
        MultiProcessTestCase.run_test(self, test_name, parent_pipe)


class Outcomes(unittest.TextTestResult):
    """Remembers which test did what."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.passed: list[str] = []
        self.skipped_names: list[str] = []

    def addSuccess(self, test: Any) -> None:
        super().addSuccess(test)
        self.passed.append(test._testMethodName)

    def addSkip(self, test: Any, reason: str) -> None:
        super().addSkip(test, reason)
        self.skipped_names.append(test._testMethodName)


def main() -> int:
    names = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    loader = unittest.TestLoader()
    names = names or list(loader.getTestCaseNames(TestAccl))
    suite = unittest.TestSuite(TestAccl(name) for name in names)
    runner = unittest.TextTestRunner(resultclass=Outcomes, verbosity=2)
    outcome: Any = runner.run(suite)
    failed = [test._testMethodName for test, _ in [*outcome.failures, *outcome.errors]] + [
        test._testMethodName for test in outcome.unexpectedSuccesses
    ]
    print(
        json.dumps(
            {
                "passed": sorted(outcome.passed),
                "failed": sorted(failed),
                "skipped": sorted(outcome.skipped_names),
            }
        )
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
