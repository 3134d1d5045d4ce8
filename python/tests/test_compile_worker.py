"""The worker with compiled layers (`ljperf benchmark --with compile`), and explained graphs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ljtrain import compile_explain
from ljtrain.compile_backend import Break, Graph
from ranks import PACKAGE_ROOT, install_entry_point, launch, worker_config


def test_the_worker_reports_what_was_compiled(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    install_entry_point(site)
    run = launch(
        worker_config(tmp_path, compile=True, steps=2),
        1,
        tmp_path,
        first_on_path=site,
        LJTRAIN_COMPILE="1",
        TORCH_DEVICE_BACKEND_AUTOLOAD="1",
    )
    assert run.status == [0], run.logs
    compiled = run.one(0, "done")["compile"]
    assert (compiled["graphs"], compiled["graph_breaks"], compiled["recompilations"]) == (2, 0, 0)
    assert compiled["seconds"] > 0
    assert compiled["layers"]["loss"]["name"] == "ForCausalLMLoss"
    assert compiled["layers"]["kinds"][0]["name"] == "LlamaDecoderLayer"
    assert "compile: LlamaDecoderLayer x 2 (training, checkpointed)" in run.logs[0]


def test_a_run_left_to_stock_compilation_is_refused(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    install_entry_point(site)
    run = launch(
        worker_config(tmp_path, compile=True, training_arguments={"torch_compile_mode": None}),
        1,
        tmp_path,
        first_on_path=site,
        LJTRAIN_COMPILE="1",
        TORCH_DEVICE_BACKEND_AUTOLOAD="1",
        ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION="true",
    )
    error = run.one(0, "error")
    assert error["kind"] == "bad_input"
    assert "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION is set" in error["message"]


def test_a_models_graphs_are_explained(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ljtrain.compile_explain"],
        input=json.dumps(worker_config(tmp_path, compile=True)),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    kind, loss = report["kinds"]
    (variant,) = kind["variants"]
    assert (kind["name"], kind["layers"], len(variant["graphs"])) == ("LlamaDecoderLayer", 2, 1)
    assert variant["breaks"] == []
    assert (loss["name"], len(loss["variants"][0]["graphs"])) == ("ForCausalLMLoss", 1)
    assert variant["graphs"][0]["lines"][0]["file"].endswith(".py")
    assert "LlamaDecoderLayer x 2 (training, checkpointed): 1 graph, 0 breaks" in report["text"]


def test_bad_input_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ljtrain.compile_explain"],
        input="{",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)},
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "is not JSON" in done.stderr


def test_a_break_costs_the_gap_it_leaves() -> None:
    here = Break("model.py", 7, "print")
    graphs = [
        Graph(3, set(), ended_by=here, spans=[(0.0, 1.0), (10.0, 11.0)]),
        Graph(2, set(), spans=[(1.5, 2.0), (11.25, 12.0)]),
    ]
    assert compile_explain._break_costs(graphs) == {0: 0.375}
