"""The list of upstream names that are changed in memory: complete, and still true of upstream."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from ljtrain import patches, versions
from ljtrain.patches import Patch
from torch import distributed
from torch.distributed import distributed_c10d


def test_every_patch_is_listed() -> None:
    defined = [value for value in vars(patches).values() if isinstance(value, Patch)]
    defined += patches.COMPILER_SETTINGS
    assert sorted(patch.name for patch in defined) == sorted(patch.name for patch in patches.ALL)
    # Measuring wraps methods of one Trainer, recomputing those of all: two patches, two reasons.
    assert len({(patch.name, patch.reason) for patch in patches.ALL}) == len(patches.ALL)


@pytest.mark.parametrize("patch", patches.ALL, ids=lambda patch: patch.name)
def test_the_name_exists_upstream(patch: Patch) -> None:
    """Fails when upstream renames what is changed: setting the old name would change nothing."""
    owner_name, attribute = patch.name.rsplit(".", maxsplit=1)
    owner = pkgutil.resolve_name(owner_name)
    if patch.read_by is not None:
        assert f'"{attribute}"' in inspect.getsource(pkgutil.resolve_name(patch.read_by))
    else:
        assert hasattr(owner, attribute) or attribute in inspect.get_annotations(owner)
    package, version = patch.checked_on.split()
    assert versions.is_tested(package, version)
    assert patch.reason


def test_wrapping_changes_one_instance() -> None:
    one, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    seen = []

    def wrap(method: Callable[[], None]) -> Callable[[], None]:
        seen.append(method)
        return method

    patches.ZERO_GRAD.apply(one, wrap)
    assert "zero_grad" in vars(one)
    assert "zero_grad" not in vars(other)
    one.zero_grad()
    assert seen == [one.zero_grad]


def test_compiler_settings_are_put_back() -> None:
    config = torch._dynamo.config
    before = (config.optimize_ddp, config.suppress_errors, config.capture_scalar_outputs)
    undo = [patch.apply() for patch in patches.COMPILER_SETTINGS]
    assert (config.optimize_ddp, config.suppress_errors) == (False, True)
    for back in undo:
        back()
    assert before == (config.optimize_ddp, config.suppress_errors, config.capture_scalar_outputs)


def test_every_group_takes_the_timeout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    timeout = timedelta(seconds=77)
    monkeypatch.setattr(distributed_c10d, "default_pg_timeout", distributed_c10d.default_pg_timeout)
    patches.GROUP_TIMEOUT.apply(timeout)
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        for group in (distributed.group.WORLD, distributed.new_group([0])):
            assert group is not None
            assert group._get_backend(torch.device("cpu")).options._timeout == timeout
    finally:
        distributed.destroy_process_group()
