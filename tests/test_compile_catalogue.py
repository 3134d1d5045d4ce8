"""Every model of the catalogue compiles to whole layers: `ljperf compile --explain`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Ljperf

CATALOGUE = Path(__file__).parents[1] / "ljperf/catalogue/models"


@pytest.mark.slow
@pytest.mark.parametrize("model", sorted(path.stem for path in CATALOGUE.glob("*.json")))
def test_layers_are_whole_graphs(ljperf: Ljperf, model: str) -> None:
    done = ljperf("compile", "--explain", model, "--seq", "128", "--json", timeout=1200)
    assert done.returncode == 0, done.stderr
    kinds = json.loads(done.stdout)["kinds"]
    assert kinds
    for kind in kinds:
        for variant in kind["variants"]:
            assert (len(variant["graphs"]), variant["breaks"]) == (1, []), kind["name"]
            assert variant["failures"] == []
    assert "recompile_limit" not in done.stderr
