"""Predicts the memory of trainings that others published, and compares.

    .venv/bin/python benchmarks/recompute/published.py --output benchmarks/recompute/results/...

One set of assumptions for all rows of a table, stated in ASSUMPTIONS and printed with the result;
nothing is fitted to a row. The figures of published/*.csv name their sources in the first line.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from ljtrain.trace import unpack

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PROFILES = ROOT / "recompute/profiles"
GIB = 2**30
ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"

ASSUMPTIONS = {
    "torchtitan": [
        "FSDP2 over all 8 GPUs (context parallel ranks included): shards and Adam's moments fp32, "
        "computing in bf16 (MixedPrecisionPolicy), gradients reduced in fp32",
        "sequence 8192 where the table gives none; under context parallelism a rank has "
        "sequence / cp tokens",
        "selective_op keeps the outputs of attention and of every second matrix product "
        "(torchtitan's policy of that time), full keeps each layer's input",
        "compiled layers by the compiled profile; where they keep selected operators, by the eager "
        "one, which knows operators: the partitioner keeps what the policy keeps",
        "loss on fp32 logits of 128256 tokens, not fused",
        "layers traced from transformers' Llama, whose rotary embeddings and norms differ in "
        "temporaries from torchtitan's",
        "float8 changes the inputs of products, not what is saved between them: counted as bf16",
        "published figures are max_reserved of the caching allocator and count no device context: "
        "compared with the prediction less framework, fragmentation included, and with what the "
        "allocator holds freed but too small for the head's fp32 tensors: the bf16 logits and the "
        "working set of a layer (a counted model of reserved memory, no replay)",
    ],
    "llm-foundry": [
        "FSDP FULL_SHARD, mixed precision PURE: fp32 shards and moments, computing in bf16; "
        "predicted as FSDP2, which reduces in fp32",
        "attention as flash attention (no S x S), without transformers' masks and ALiBi tables",
        "activation checkpointing of every layer where the row says so; learned positions in place "
        "of ALiBi as its parameter counts show",
        "loss_fn fused_crossentropy, llm-foundry's default: logits and their gradient in bf16, no "
        "fp32 copies",
        "the device has 40 GiB; the prediction includes the framework",
    ],
}


def plan(*options: object) -> dict[str, Any]:
    words = [str(ROOT / ".venv/bin/ljperf"), "plan", "--json", "--limit", "100TiB"]
    done = subprocess.run([*words, *map(str, options)], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def rows_of(name: str) -> list[dict[str, str]]:
    lines = (HERE / "published" / f"{name}.csv").read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def every_second_product(folder: Path) -> Path:
    """Llama's profile in which every second product of a layer's forward has a name of its own."""
    profile = unpack(json.loads((PROFILES / "llama.json").read_text()))
    for variant in profile["variants"]:
        for name, segment in variant["segments"].items():
            if not name.startswith("layer:"):
                continue
            rename_products(segment)
    file = folder / "llama.json"
    file.write_text(json.dumps(profile))
    return file


def rename_products(segment: dict[str, Any]) -> None:
    """Odd products (counted from 1) of the forward and of its recomputation: aten.mm.kept."""
    backward = segment["backward"][: segment.get("recompute_events", 0)]
    for events in (segment["forward"], backward):
        count = 0
        for event in events:
            tensor = segment["tensors"][abs(event) - 1]
            if event > 0 and tensor[1] in ("aten.mm", "aten.mm.kept"):
                count += 1
                tensor[1] = "aten.mm.kept" if count % 2 == 1 else "aten.mm"
    count = 0
    for work in segment["work"]:
        if work[0] == "aten.mm":
            count += 1
            work[0] = "aten.mm.kept" if count % 2 == 1 else "aten.mm"


def mpt_with_flash_attention(folder: Path) -> Path:
    """MPT's profile as llm-foundry runs it: flash attention, no S x S masks, fused loss."""
    profile = unpack(json.loads((PROFILES / "mpt.json").read_text()))
    for variant in profile["variants"]:
        segments = variant["segments"]
        segments["layer:dense"] = segments.pop("layer:dense_flash")
        before = segments["prologue"]
        square = {
            number
            for number, tensor in enumerate(before["tensors"], 1)
            if "seq*seq" in tensor[0] or "positions" in tensor[0]
        }
        drop(before, square)
        fuse_loss(segments["epilogue"])
    file = folder / "mpt.json"
    file.write_text(json.dumps(profile))
    return file


def fuse_loss(head: dict[str, Any]) -> None:
    """Logits stay in bf16 until the backward has written their gradient; no fp32 copies."""
    numbered = list(enumerate(head["tensors"], 1))
    drop(head, {n for n, tensor in numbered if tensor[0].startswith("4*micro_batch*seq*vocab")})
    half = [n for n, tensor in numbered if tensor[0] == "2*micro_batch*seq*vocab"]
    if len(half) == 2:
        logits, gradient = half
        drop_event(head["forward"], -logits)
        head["backward"].insert(head["backward"].index(gradient) + 1, -logits)
        head["tensors"][logits - 1][2] = "activation"


def drop_event(events: list[int], event: int) -> None:
    if event in events:
        events.remove(event)


def drop(segment: dict[str, Any], numbers: set[int]) -> None:
    """Takes tensors out of a segment's events."""
    for events in ("forward", "backward"):
        segment[events] = [event for event in segment[events] if abs(event) not in numbers]


def torchtitan(folder: Path) -> list[list[str]]:
    profile = every_second_product(folder)
    table = []
    for row in rows_of("torchtitan_llama31_8gpu"):
        recompute = ["--recompute", 32]
        if row["ac"] == "selective_op":
            recompute += ["--keep", f"aten.mm.kept,{ATTENTION}"]
        options = ["--model", "fsdp/llama3-8b", "--precision", "bf16", "--profile", profile]
        options += ["--devices", row["n_gpus"], "--micro-batch", row["local_batch"]]
        options += ["--seq", int(row["seq_len"]) // int(row["cp"])]
        compiled = row["compile"] == "1"
        whole = row["ac"] == "full"
        answer = plan(*options, *recompute, *(["--compile"] if compiled and whole else []))
        predicted = answer["predicted_peak_bytes"] - answer["breakdown_bytes"]["framework"]
        tokens = int(row["local_batch"]) * int(row["seq_len"]) // int(row["cp"])
        predicted += 2 * tokens * 128256 + answer["working_set_peak_bytes"]
        measured = float(row["memory_gib"])
        error = predicted / GIB / measured - 1
        names = [f"{row['local_batch']} x {row['seq_len']}", row["ac"]]
        names += ["compile" if compiled else "eager", "float8" if row["float8"] == "1" else "bf16"]
        names += [f"cp {row['cp']}"]
        verdict = "within 10 %" if abs(error) <= 0.1 else "MISSED"
        figures = [f"{measured:.1f}", f"{predicted / GIB:.1f}", f"{100 * error:+.1f} %", verdict]
        table.append([", ".join(names), *figures])
    return table


def mpt_config(sizes: dict[str, str], seq: int) -> dict[str, Any]:
    return {
        "model_type": "mpt",
        "d_model": int(sizes["d_model"]),
        "n_heads": int(sizes["n_heads"]),
        "n_layers": int(sizes["n_layers"]),
        "vocab_size": int(sizes["vocab"]),
        "max_seq_len": seq,
    }


def llm_foundry(folder: Path) -> tuple[list[list[str]], list[float]]:
    profile = mpt_with_flash_attention(folder)
    sizes = {row["model"]: row for row in rows_of("mpt_configs")}
    rows = rows_of("llmfoundry_mpt_fits_a100_40gb")
    largest: dict[tuple[str, ...], int] = {}
    for row in rows:
        key = (row["model"], row["seqlen_t"], row["n_gpus"])
        largest[key] = max(largest.get(key, 0), int(row["microbatchsize"]))
    table, shares = [], []
    for row in rows:
        seq, layers = int(row["seqlen_t"]), int(sizes[row["model"]]["n_layers"])
        config = folder / "config.json"
        config.write_text(json.dumps(mpt_config(sizes[row["model"]], seq)))
        recompute = layers if row["activation_checkpointing"] == "True" else 0
        options = ["--config", config, "--engine", "fsdp", "--precision", "bf16"]
        options += ["--profile", profile, "--devices", row["n_gpus"], "--seq", seq]
        options += ["--micro-batch", row["microbatchsize"], "--recompute", recompute]
        predicted = plan(*options)["predicted_peak_bytes"] / GIB
        share = predicted / 40
        if int(row["microbatchsize"]) == largest[row["model"], row["seqlen_t"], row["n_gpus"]]:
            shares.append(share)
        name = f"{row['model']}, {row['microbatchsize']} x {seq}, {row['n_gpus']} GPUs"
        name += ", checkpointing" if recompute else ""
        verdict = "fits" if share <= 1 else "MISSED: predicted not to fit"
        table.append([name, f"{predicted:.1f}", f"{share:.2f}", verdict])
    return table, shares


def layer_inputs(folder: Path) -> list[str]:
    """The row of transformers #48444: what offloading the inputs of recomputed layers frees."""
    row = rows_of("hf_transformers_pr48444_offload")[0]
    config = folder / "config.json"
    sizes = {"hidden_size": int(row["hidden"]), "num_hidden_layers": int(row["layers"])}
    sizes |= {"intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8}
    config.write_text(json.dumps({"model_type": "qwen3", "vocab_size": 151936, **sizes}))
    options = ["--config", config, "--devices", 1, "--seq", row["seq"], "--zero", 0]
    answer = plan(*options, "--recompute", row["layers"])
    predicted = answer["breakdown_bytes"]["layer_inputs"] / 2**20
    measured = float(row["freed_mb"])
    return [f"{row['layers']} x {row['seq']} x {row['hidden']}", f"{measured}", f"{predicted:.1f}"]


TOO_LITTLE = [
    ("hf_accelerate_pr4175: none, ac, ac+offload", "names neither model, batch nor sequence"),
    (
        "hf_accelerate_pr4175: qwen3-0.6b rows",
        "does not say how the loss is computed: whole logits of a rank's 131072 tokens alone are "
        "37 GiB, above the measured 27.9 GB",
    ),
    (
        "deepspeed_issue4527: all rows",
        "names neither batch nor sequence, and reads nvidia-smi after each phase, not a peak",
    ),
]


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def report() -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        titan = torchtitan(folder)
        mpt, shares = llm_foundry(folder)
        inputs = layer_inputs(folder)

    def listed(name: str) -> str:
        return "".join(f"- {line}\n" for line in ASSUMPTIONS[name])

    hits = sum("within" in row[-1] for row in titan)
    fit = sum(row[-1] == "fits" for row in mpt)
    titan_header = ["run", "measured GiB", "predicted GiB", "error", ""]
    mpt_header = ["run", "predicted GiB", "of the device", ""]
    return (
        f"# Published memory figures, predicted ({datetime.date.today()})\n\n"
        f"## torchtitan, Llama 3.1 8B on 8 H100: {hits} of {len(titan)} within 10 %\n\n"
        f"{listed('torchtitan')}\n{markdown(titan_header, titan)}\n"
        f"## transformers #48444: inputs of recomputed layers, MiB\n\n"
        f"{markdown(['layers x tokens x hidden', 'freed', 'predicted'], [inputs])}\n"
        f"## llm-foundry, MPT on A100 40 GB: {fit} of {len(mpt)} runs that fitted are "
        f"predicted to\n\n"
        f"Median predicted / device over the {len(shares)} rows with the largest micro-batch of "
        f"their (model, sequence, GPUs): {statistics.median(shares):.2f} (at least 0.6 wanted).\n\n"
        f"{listed('llm-foundry')}\n{markdown(mpt_header, mpt)}\n"
        "## Rows that say too little to be predicted\n\n"
        + "".join(f"- {name}: {reason}\n" for name, reason in TOO_LITTLE)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="file for the report; else it is printed")
    arguments = parser.parse_args()
    text = report()
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
