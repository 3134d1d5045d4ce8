"""Models trained by the real worker on ACCL and on Gloo: the same loss, and ACCL did serve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ranks import ZERO3, install_entry_point, launch, worker_config

STEPS = 4
ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {"engine": "ddp"},
    "zero3": {"engine": "deepspeed", "deepspeed": ZERO3},
    "fsdp": {"engine": "fsdp"},
}


def losses(folder: Path, site: Path, engine: str, **environment: str) -> tuple[list[Any], str]:
    folder.mkdir()
    config = worker_config(folder, steps=STEPS, **ENGINES[engine])
    run = launch(config, 2, folder, first_on_path=site, **environment)
    assert run.status == [0, 0], run.logs
    return [event["loss"] for event in run.of(0, "step")], run.logs[0]


@pytest.mark.parametrize(
    "engine",
    [
        "zero3",
        pytest.param("ddp", marks=pytest.mark.slow),
        pytest.param("fsdp", marks=pytest.mark.slow),
    ],
)
def test_the_loss_is_the_same_as_on_gloo(tmp_path: Path, engine: str) -> None:
    site = tmp_path / "site"
    site.mkdir()
    install_entry_point(site)
    on_accl, said = losses(
        tmp_path / "accl", site, engine, LJTRAIN_ACCL="1", TORCH_DEVICE_BACKEND_AUTOLOAD="1"
    )
    on_gloo, said_on_gloo = losses(tmp_path / "gloo", site, engine)
    assert len(on_accl) == STEPS
    assert on_accl == pytest.approx(on_gloo, rel=2e-3)
    assert "accl serves the CPU groups of this run instead of Gloo" in said
    assert "leaves a group" not in said
    assert "accl" not in said_on_gloo
    assert "deepspeed_shm_comm" not in said
    assert "training goes on without it" not in said


def test_asked_for_but_not_active_is_refused(tmp_path: Path) -> None:
    run = launch(worker_config(tmp_path), 1, tmp_path, LJTRAIN_ACCL="1")
    (error,) = run.of(0, "error")
    assert error["kind"] == "bad_input"
    assert "LJTRAIN_ACCL is set, but not active" in error["message"]
