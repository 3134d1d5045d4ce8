"""Trainings with torch_compile=True beside eager ones, in one pair of processes a group of cases:
the same losses, whole graphs, few compilations, and no failure whatever a layer holds.

Most cases put a backend behind Dynamo that compiles no C++ (aot_eager): then the two trainings
compute the same bits, so that the smallest mistake shows. `make test-slow` runs all with Inductor.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ranks import PACKAGE_ROOT, install_entry_point

TESTS = Path(__file__).parent
DEADLINE_S = 2400
BF16 = 5e-3  # relative; eager bf16 against float32 is off by as much on these models
AOT = {"backend": "aot_eager"}
GATHER = {"stage3_gather_16bit_weights_on_model_save": True}
VARYING = [32, 40, 24, 37, 51]

ZERO: list[dict[str, Any]] = [
    {"case": "inductor", "lengths": VARYING, "start_again": "a"},
    {"case": "second start", "lengths": VARYING, "start_again": "a"},
    {
        "case": "accumulation",
        **AOT,
        "accumulation": 2,
        "lengths": [32] * 4,
        "evaluate": True,
        "save": True,
        "zero": GATHER,
    },
    {"case": "frozen", **AOT, "trainable": "q_proj", "checkpointing": False},
    {"case": "kinds", **AOT, "model": "gemma3", "evaluate": True},
    {"case": "experts", **AOT, "model": "qwen3_moe"},
    {"case": "large layers", **AOT, "zero": {"stage3_max_live_parameters": 60000}},
    {"case": "slower", **AOT, "slower": True},
    {"case": "broken", "backend": "broken"},
    {
        "case": "broken later",
        "backend": "broken_later_on_rank_1",
        "lengths": [32, 32, 40, 32, 40, 32],
    },
]
OTHERS: list[dict[str, Any]] = [
    {"case": "ddp", **AOT, "engine": "ddp", "save": True, "lengths": VARYING},
    {"case": "zero2", **AOT, "engine": "zero2", "save": True},
    {"case": "reentrant", **AOT, "engine": "zero2", "reentrant": True},
    {"case": "fsdp", **AOT, "engine": "fsdp", "save": True},  # last: it leaves its environment
]
MORE: list[dict[str, Any]] = [
    {"case": "zero0", **AOT, "engine": "zero0"},
    {"case": "zero1", **AOT, "engine": "zero1", "accumulation": 2, "lengths": [32] * 4},
    {"case": "resumed zero3", **AOT, "checkpoint_after": 2, "lengths": [32] * 4},
    {"case": "resumed ddp", **AOT, "engine": "ddp", "checkpoint_after": 2, "lengths": [32] * 4},
    {"case": "storm", "construct": "counter", "backend": "eager", "lengths": [16] * 13},
    {"case": "mixed", **AOT, "model": "gemma3", "evaluate": True, "lengths": VARYING},
]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_cases(
    folder: Path, cases: list[dict[str, Any]], ranks: int = 2, **variables: str
) -> dict[str, Any]:
    """The results of rank 0 by name, and all that the ranks said under the name ""."""
    site = folder / "site"
    site.mkdir()
    install_entry_point(site)
    (folder / "cases.json").write_text(json.dumps(cases))
    port, processes = str(_free_port()), []
    cleared = {key: value for key, value in os.environ.items() if not key.startswith("LJTRAIN")}
    for rank in range(ranks):
        environment = {
            **cleared,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1",
            "LJTRAIN_ACCL": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "PYTHONPATH": os.pathsep.join((str(site), str(PACKAGE_ROOT), str(TESTS))),
            **variables,
        }
        command = [sys.executable, str(TESTS / "compile_ranks.py"), str(folder / "cases.json")]
        with (folder / f"log{rank}").open("w") as log:
            processes.append(
                subprocess.Popen(
                    [*command, str(folder / f"result{rank}.json")],
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        status = [process.wait(DEADLINE_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    said = "".join((folder / f"log{rank}").read_text(errors="replace") for rank in range(ranks))
    assert status == [0] * ranks, said[-5000:]
    results = [json.loads((folder / f"result{rank}.json").read_text()) for rank in range(ranks)]
    named = {
        result["case"].get("case") or result["case"]["construct"]: {**result, "other": other}
        for result, other in zip(results[0], results[1 if ranks > 1 else 0], strict=True)
    }
    return {**named, "": said}


def trained(results: dict[str, Any], name: str) -> dict[str, Any]:
    """The compiled training of a case, whose losses are those of the eager one."""
    result = results[name]
    assert "error" not in result, result.get("error")
    eager, compiled = result["eager"], result["compiled"]
    exact = result["case"].get("backend", "inductor") != "inductor"
    exact = exact and "tolerance" not in result["case"]
    for what in ("losses", "grad_norms", "evaluated"):
        wanted = eager[what] if exact else pytest.approx(eager[what], rel=BF16)
        assert compiled[what] == wanted, what
    assert compiled["losses"]
    return dict(compiled)


def variants(training: dict[str, Any]) -> list[dict[str, Any]]:
    return [variant for kind in training["report"]["kinds"] for variant in kind["variants"]]


@pytest.fixture(scope="module")
def zero(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_cases(tmp_path_factory.mktemp("zero"), ZERO)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_cases(tmp_path_factory.mktemp("others"), OTHERS)


def test_lengths_that_vary_take_two_compilations(zero: dict[str, Any]) -> None:
    training = trained(zero, "inductor")
    assert training["report"]["dry_pass"]["done"]
    (variant,) = variants(training)
    assert variant["mode"] == "whole"
    assert (variant["compilations"], variant["graphs"], variant["breaks"]) == (2, 2, [])
    (loss,) = training["report"]["loss"]["variants"]
    assert (loss["mode"], loss["compilations"], loss["graphs"]) == ("whole", 2, 2)
    assert training["counters"]["stats"]["unique_graphs"] == 4
    assert (
        training["report"]["zero3"]["prefetch_numel"] == training["report"]["zero3"]["layer_numel"]
    )
    assert "recompile_limit" not in zero[""]


def test_a_second_start_compiles_nothing_and_decides_the_same(zero: dict[str, Any]) -> None:
    first, second = trained(zero, "inductor"), trained(zero, "second start")
    assert second["counters"]["inductor"].get("fxgraph_cache_miss", 0) == 0
    assert second["counters"]["aot_autograd"].get("autograd_cache_miss", 0) == 0
    assert [variant["mode"] for variant in variants(first)] == [
        variant["mode"] for variant in variants(second)
    ]


def test_accumulation_evaluation_and_a_checkpoint_as_uncompiled(zero: dict[str, Any]) -> None:
    training = trained(zero, "accumulation")
    assert [variant["name"] for variant in variants(training)] == [
        "training, checkpointed",
        "evaluation",
    ]
    assert training["keys"] == zero["accumulation"]["eager"]["keys"] != []
    assert not any("_orig_mod" in key for key in training["keys"])
    assert training["reloaded"] is True


@pytest.mark.parametrize(("case", "kinds"), [("frozen", 1), ("kinds", 2), ("experts", 2)])
def test_each_kind_is_one_graph(zero: dict[str, Any], case: str, kinds: int) -> None:
    training = trained(zero, case)
    assert len(training["report"]["kinds"]) == kinds
    assert all(
        (variant["mode"], variant["graphs"], variant["compilations"]) == ("whole", 1, 1)
        for variant in variants(training)
    )


def test_layers_too_large_to_gather_are_gathered_in_parts(zero: dict[str, Any]) -> None:
    training = trained(zero, "large layers")
    names = {kind["name"].split(" ")[0] for kind in training["report"]["kinds"]}
    assert names == {"LlamaAttention", "Linear", "LlamaRMSNorm"}
    assert training["report"]["zero3"]["layer_numel"] <= 30000


def test_what_is_slower_compiled_runs_eagerly(zero: dict[str, Any]) -> None:
    (variant,) = variants(trained(zero, "slower"))
    assert variant["mode"] == "eager"
    assert (variant["eager_s"], variant["compiled_s"]) == (1.0, 2.0)
    assert "runs eagerly: eager is faster here, 0.50 x eager's speed" in zero[""]


def test_a_broken_compiler_costs_no_training(zero: dict[str, Any]) -> None:
    (variant,) = variants(trained(zero, "broken"))
    assert variant["mode"] == "eager"
    assert all("modeling_llama.py" in failure for failure in variant["failures"])
    assert "this compiler is broken" in zero[""]


def test_a_later_failure_of_one_rank_switches_all_at_one_step(zero: dict[str, Any]) -> None:
    trained(zero, "broken later")
    modes = [
        [variant["mode"] for variant in variants(result["compiled"])]
        for result in (zero["broken later"], zero["broken later"]["other"])
    ]
    assert modes == [["eager"], ["eager"]]  # in parts it failed on that rank, too
    switches = [line for line in zero[""].splitlines() if "from step" in line]
    assert ["runs in parts from step 5 on" in line for line in switches] == [True, False]
    assert ["runs eagerly from step 7 on" in line for line in switches] == [False, True]


@pytest.mark.parametrize("engine", ["ddp", "zero2", "reentrant", "fsdp"])
def test_other_engines_compile_whole_layers_too(others: dict[str, Any], engine: str) -> None:
    training = trained(others, engine)
    assert {variant["mode"] for variant in variants(training)} == {"whole"}
    if "keys" in training:
        assert training["keys"] == others[engine]["eager"]["keys"] != []
        assert training["reloaded"] is True


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_cases(tmp_path_factory.mktemp("more"), MORE)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["zero0", "zero1", "mixed"])
def test_each_engine_and_way_of_calling(more: dict[str, Any], case: str) -> None:
    training = trained(more, case)
    assert {variant["mode"] for variant in variants(training)} == {"whole"}
    assert all(variant["compilations"] <= 2 for variant in variants(training))
    assert training["report"]["dry_pass"]["done"]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["resumed zero3", "resumed ddp"])
def test_checkpoints_go_both_ways(more: dict[str, Any], case: str) -> None:
    training = trained(more, case)
    for way in ("eager", "compiled"):
        resumed = more[case][f"from {way}"]
        assert resumed["losses"][-2:] == training["losses"][-2:]
    assert more[case]["from eager"]["report"] is not None


@pytest.mark.slow
def test_what_is_compiled_again_and_again_goes_eager_between_two_steps(
    more: dict[str, Any],
) -> None:
    (variant,) = variants(trained(more, "storm"))
    assert variant["mode"] == "eager"
    (line,) = [
        line for line in more[""].splitlines() if "Layer_counter" in line and "from step" in line
    ]
    assert "runs eagerly from step" in line and "?" not in line
    assert "as its inputs or attributes keep changing" in line
    assert "recompile_limit" not in more[""]


@pytest.mark.slow
def test_lora_trains_the_same(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    # Not to the bit: a graph adds the gradients of the two paths in another order.
    case = {"case": "lora", **AOT, "lora": True, "lengths": [32] * 4, "tolerance": BF16}
    (variant,) = variants(trained(run_cases(tmp_path, [case]), "lora"))
    assert (variant["mode"], variant["graphs"], variant["breaks"]) == ("whole", 1, [])
