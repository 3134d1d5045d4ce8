"""`ljperf plan` end to end, as a user runs it: without PyTorch and without a GPU."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Ljperf

GIB = 2**30
BREAKDOWN = {
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "communication",
    "framework",
}


def plan(ljperf: Ljperf, *options: str | Path, code: int = 0) -> dict[str, Any]:
    done = ljperf("plan", *options, "--json", timeout=60)
    assert done.returncode == code, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def refusal(ljperf: Ljperf, *options: str | Path) -> str:
    """The one line that bad input gets."""
    done = ljperf("plan", *options, timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("ljperf: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def check_document(answer: dict[str, Any]) -> None:
    assert answer["schema_version"] == 1
    assert set(answer["breakdown_bytes"]) >= BREAKDOWN
    parts = sum(answer["breakdown_bytes"].values())
    assert abs(parts - answer["predicted_peak_bytes"]) <= len(answer["breakdown_bytes"])
    assert len(answer["policy"]) == answer["layers"]
    assert set(answer["policy"]) <= {"none", "selected", "full"}
    assert answer["recompute_layers"] == sum(p != "none" for p in answer["policy"])
    assert answer["fits"] == (answer["predicted_peak_bytes"] <= answer["limit_bytes"])
    assert 0 <= answer["optimality_gap"] < 0.05
    assert answer["alternatives"]
    for alternative in answer["alternatives"]:
        assert set(alternative) >= {"change", "fits", "predicted_peak_bytes", "recompute_layers"}


def test_the_whole_catalogue_is_planned(ljperf: Ljperf) -> None:
    models = json.loads(ljperf("models", "--json").stdout)["models"]
    assert len(models) >= 9
    for model in models:
        for devices in ("8", "512"):
            done = ljperf("plan", "--model", model["id"], "--devices", devices, "--json")
            assert done.returncode in (0, 1), (model["id"], done.stderr)
            answer = json.loads(done.stdout)
            check_document(answer)
            assert answer["parameters"] == model["parameters"], model["id"]
        assert answer["fits"], model["id"]  # 512 devices are enough for each of them


def test_every_engine_and_stage(ljperf: Ljperf) -> None:
    peaks = {}
    for options in (
        *(("--zero", str(stage)) for stage in range(4)),
        ("--engine", "fsdp"),
        ("--engine", "ddp"),
    ):
        answer = plan(
            ljperf, "--model", "llama3-8b", *options, "--limit", "1TiB", "--recompute", "32"
        )
        check_document(answer)
        peaks[" ".join(options)] = answer["predicted_peak_bytes"]
    assert peaks["--zero 3"] < peaks["--zero 2"] <= peaks["--zero 1"] < peaks["--zero 0"]
    assert peaks["--engine fsdp"] < peaks["--engine ddp"]


def test_less_memory_means_more_recomputing(ljperf: Ljperf) -> None:
    before = -1
    for limit in ("120GiB", "70GiB", "60GiB", "50GiB", "40GiB"):
        answer = plan(ljperf, "--model", "llama3-8b", "--limit", limit, "--whole-layers")
        check_document(answer)
        assert answer["fits"] and answer["recompute_layers"] >= before
        # The last layers are the ones left alone.
        kept = answer["policy"].index("none") if "none" in answer["policy"] else 32
        assert answer["policy"] == ["full"] * kept + ["none"] * (32 - kept)
        before = answer["recompute_layers"]
    assert before > 10


def test_selecting_operators_is_faster_than_whole_layers(ljperf: Ljperf) -> None:
    options = ("--model", "llama3-8b", "--limit", "55GiB")
    selected = plan(ljperf, *options)
    whole = plan(ljperf, *options, "--whole-layers")
    assert "selected" in selected["policy"] and selected["kept_operators"]
    assert selected["step_time_estimate_s"] < whole["step_time_estimate_s"]
    changes = [a["change"] for a in selected["alternatives"]]
    assert "whole layers only" in changes and "recompute every layer" in changes


def test_what_else_would_fit_does_fit(ljperf: Ljperf) -> None:
    options = ("--model", "llama3-8b", "--seq", "4096")
    answer = plan(ljperf, *options)
    largest = answer["max_micro_batch"]
    assert largest > 1
    assert plan(ljperf, *options, "--micro-batch", str(largest))["fits"]
    assert not plan(ljperf, *options, "--micro-batch", str(largest + 1), code=1)["fits"]
    longest = answer["max_seq"]
    assert plan(ljperf, "--model", "llama3-8b", "--seq", str(longest))["fits"]
    assert not plan(ljperf, "--model", "llama3-8b", "--seq", str(longest + 1), code=1)["fits"]


def test_a_fixed_number_of_layers(ljperf: Ljperf) -> None:
    twelve = plan(ljperf, "--model", "llama3-8b", "--recompute", "12", "--limit", "1TiB")
    assert twelve["policy"] == ["full"] * 12 + ["none"] * 20
    none = plan(ljperf, "--model", "llama3-8b", "--recompute", "0", "--limit", "1TiB")
    assert twelve["predicted_peak_bytes"] < none["predicted_peak_bytes"]
    assert "from 0 to 32" in refusal(ljperf, "--model", "llama3-8b", "--recompute", "33")


def test_a_fresh_config(ljperf: Ljperf, write_config: Callable[..., Path]) -> None:
    config = write_config(
        hidden_size=1536,
        intermediate_size=8960,
        num_attention_heads=12,
        num_hidden_layers=28,
        vocab_size=151936,
    )
    answer = plan(
        ljperf, "--config", config, "--device", "rtx 4090", "--devices", "4", "--seq", "2048"
    )
    check_document(answer)
    assert answer["model"] == "config.json" and answer["device"] == "GeForce RTX 4090"


def test_mpt_by_its_own_keys(ljperf: Ljperf, tmp_path: Path) -> None:
    config = tmp_path / "mpt.json"
    sizes = {"d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432}
    config.write_text(json.dumps({"model_type": "mpt", "max_seq_len": 2048, **sizes}))
    answer = plan(ljperf, "--config", config, "--engine", "fsdp", "--seq", "2048")
    check_document(answer)
    assert answer["parameters"] == 6_649_286_656
    assert "has 2048 positions" in refusal(ljperf, "--config", config, "--seq", "4096")


def test_an_unknown_family_names_the_command(
    ljperf: Ljperf, write_config: Callable[..., Path]
) -> None:
    config = write_config(model_type="olmo9", architectures=["Olmo9ForCausalLM"])
    message = refusal(ljperf, "--config", config)
    assert f"ljperf trace --config {config}" in message and "olmo9" in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "no model is named"),
        (("--model", "llama3-8"), "did you mean llama3-8b"),
        (("--model", "nothing/llama3-8b"), "no engine `nothing`"),
        (("--model", "llama3-8b", "--zero", "4"), "stages 0, 1, 2 and 3"),
        (("--model", "fsdp/llama3-8b", "--zero", "3"), "--zero belongs to DeepSpeed"),
        (("--model", "llama3-8b", "--device", "h1000"), "did you mean"),
        (("--model", "llama3-8b", "--device-memory", "much"), "is not a size"),
        (("--model", "llama3-8b", "--limit", "200MiB"), "below what PyTorch itself takes"),
        (("--model", "llama3-8b", "--seq", "0"), "--seq 0: must be between"),
        (("--model", "llama3-8b", "--micro-batch", "-1"), "--micro-batch -1"),
        (("--model", "bert-large", "--seq", "8192"), "has 512 positions"),
        (("--model", "llama3-8b", "--plott", "x"), "there is no option --plott"),
        (("--model", "llama3-8b", "--device", "host"), "--device-memory"),
        (("--model", "llama3-8b", "--zero", "2", "--offload-parameters"), "needs ZeRO stage 3"),
        (("--model", "llama3-8b", "--keep", "aten.mmm"), "no such operator; they have aten."),
        (("--model", "llama3-8b", "--compile", "--keep", "aten.mm"), "kernels instead"),
    ],
)
def test_bad_usage(ljperf: Ljperf, options: tuple[str, ...], words: str) -> None:
    assert words in refusal(ljperf, *options)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "config.json:1"),
        ("[]", "is a list"),
        ("\x00\xff", "config.json"),
        ('{"model_type": "llama"}', "needs the keys"),
        ('{"model_type": "mpt", "d_model": 1e30, "n_layers": 2, "n_heads": 2}', "absent"),
        ("[" * 100_000, "config.json"),
    ],
)
def test_hostile_json(ljperf: Ljperf, tmp_path: Path, text: str, words: str) -> None:
    for name, option in (("config.json", "--config"),):
        (tmp_path / name).write_bytes(text.encode("latin-1"))
        assert words in refusal(ljperf, option, tmp_path / name)
    message = refusal(ljperf, "--model", "llama3-8b", "--profile", tmp_path / "config.json")
    assert "config.json" in message
    if text != '{"model_type": "llama"}' and not text.startswith('{"model_type": "mpt"'):
        refusal(ljperf, "--model", "llama3-8b", "--deepspeed-config", tmp_path / "config.json")


def test_a_model_that_cannot_fit_says_what_would(ljperf: Ljperf) -> None:
    done = ljperf("plan", "--model", "llama3-70b", "--device", "a100-40gb")
    assert done.returncode == 1
    assert "the largest part is optimizer with" in done.stderr
    assert "it fits with" in done.stderr and "--devices" in done.stderr
    assert "To paste" not in done.stdout
    answer = plan(ljperf, "--model", "llama3-70b", "--device", "a100-40gb", code=1)
    assert answer["max_micro_batch"] == 0 and answer["shortfall"]
    way = next(a["change"] for a in answer["alternatives"] if a["fits"] and "--dev" in a["change"])
    assert plan(ljperf, "--model", "llama3-70b", "--device", "a100-40gb", *way.split())["fits"]


def test_a_deepspeed_file_decides(ljperf: Ljperf, tmp_path: Path) -> None:
    file = tmp_path / "ds.json"
    zero: dict[str, Any] = {"stage": 2, "reduce_bucket_size": 2_000_000_000, "overlap_comm": True}
    file.write_text(
        json.dumps({"zero_optimization": zero, "activation_checkpointing": {"profile": False}})
    )
    # Sequences so short that the peak is where gradients are reduced.
    options = ("--model", "llama3-8b", "--recompute", "32", "--limit", "1TiB", "--seq", "512")
    large = plan(ljperf, *options, "--deepspeed-config", file)
    assert large["engine"] == "ZeRO-2"
    assert any("activation_checkpointing" in warning for warning in large["warnings"])
    small = plan(ljperf, *options, "--zero", "2")
    assert large["predicted_peak_bytes"] > small["predicted_peak_bytes"] + GIB
    zero["reduce_bucket_size"] = "lots"
    file.write_text(json.dumps({"zero_optimization": zero}, indent=1))
    assert re.search(
        r"ds.json:\d+: key `zero_optimization.reduce_bucket_size`",
        refusal(ljperf, *options, "--deepspeed-config", file),
    )


def test_offload_lora_and_fused_loss_save(ljperf: Ljperf) -> None:
    options = ("--model", "llama3-8b", "--recompute", "32", "--limit", "1TiB")
    whole = plan(ljperf, *options)["predicted_peak_bytes"]
    for more in (("--offload-optimizer",), ("--fused-loss",), ("--lora", "16")):
        assert plan(ljperf, *options, *more)["predicted_peak_bytes"] < whole - GIB, more


def test_the_table_fits_a_terminal(ljperf: Ljperf) -> None:
    for options in (
        ("--model", "llama3-8b", "--limit", "55GiB"),
        ("--model", "llama3-70b"),
        ("--model", "llama3-8b", "--device-memory", "80GiB", "--lora", "16", "--accumulation", "4"),
    ):
        shown = ljperf("plan", *options).stdout
        table = shown.split("To paste")[0]
        assert max(map(len, table.splitlines())) <= 80, table
        assert "GiB a rank" in table and "total" in table


def test_the_limit_of_the_environment(ljperf: Ljperf) -> None:
    done = ljperf("plan", "--model", "llama3-8b", "--json", LJTRAIN_MEMORY_LIMIT="60GiB")
    answer = json.loads(done.stdout)
    assert answer["limit_bytes"] == 60 * GIB and answer["limit_source"] == "LJTRAIN_MEMORY_LIMIT"


def test_the_plot_is_one_page_that_a_browser_draws(ljperf: Ljperf, tmp_path: Path) -> None:
    page = tmp_path / "step.html"
    plan(ljperf, "--model", "llama3-8b", "--plot", page)
    text = page.read_text()
    assert "http" not in text and "<svg" in text and "limit" in text  # nothing from the network
    assert len(re.findall("<polygon", text)) >= 10
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("no Chromium to open the page with")
    picture = tmp_path / "step.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1160,860"]

    done = subprocess.run(
        [browser, *flags, f"--user-data-dir={tmp_path}/browser", f"--screenshot={picture}", page],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert picture.stat().st_size > 20_000
    assert "Uncaught" not in done.stderr


def test_the_python_to_paste_trains(ljperf: Ljperf, tmp_path: Path) -> None:
    """The printed lines choose the layers of a stock transformers model, and the loss stays."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "num_hidden_layers": 6, "vocab_size": 320}
    config = transformers.LlamaConfig(**sizes)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**config.to_dict(), "architectures": ["LlamaForCausalLM"]}))
    memory = ("--devices", "1", "--device", "host", "--device-memory", "64GiB", "--seq", "512")
    options = ("--config", file, *memory, "--micro-batch", "4")
    most = plan(ljperf, *options, "--recompute", "0")["predicted_peak_bytes"]
    least = plan(ljperf, *options, "--recompute", "6")["predicted_peak_bytes"]
    answer = plan(ljperf, *options, "--limit", str((most + least) // 2), "--whole-layers")
    assert 0 < answer["recompute_layers"] < 6
    keep = "aten.mm,aten._scaled_dot_product_flash_attention_for_cpu"
    chosen = plan(ljperf, *options, "--recompute", "3", "--keep", keep)
    assert chosen["policy"] == ["selected"] * 3 + ["none"] * 3
    losses, gradients = [], []
    for lines in ("", answer["settings"]["python"], chosen["settings"]["python"]):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).train()
        # On a host the attention goes by its host's name.
        attention = "_scaled_dot_product_flash_attention"
        exec(
            textwrap.dedent(lines.replace(attention + ".", attention + "_for_cpu.")),
            {"model": model},
        )
        tokens = torch.arange(64).reshape(2, 32)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        losses.append(loss.item())
        gradients.append(model.model.layers[0].mlp.up_proj.weight.grad.clone())
        flags = [layer.gradient_checkpointing for layer in model.model.layers]
        recomputed = answer["recompute_layers"] if lines == answer["settings"]["python"] else 3
        if lines:
            assert flags == [i < recomputed for i in range(6)]
    assert losses[0] == losses[1] == losses[2]
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0])


def test_published_figures_are_predicted_as_the_dated_result_says(tmp_path: Path) -> None:
    """The script reads the stored profiles itself: it breaks when they change their form."""
    script = Path(__file__).parents[1] / "benchmarks/recompute/published.py"
    output = tmp_path / "published.md"
    command = [sys.executable, str(script), "--output", str(output)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    text = output.read_text()
    assert "5 of 5 within 10 %" in text
    assert "78 of 78 runs that fitted are predicted to" in text
