"""Our plan beside PyTorch's own solvers: same model, same limit, same cost of operators.

    .venv/bin/pip install pulp pwlf
    .venv/bin/python benchmarks/recompute/compare_solvers.py --output FILE

`torch.distributed._tools` (SACEstimator, sac_milp) decides from a run on fake tensors, ljperf plan
from its profile. Each decision is then carried out on fake CPU tensors: MemTracker gives the peak,
and the operators executed give the time, by one roofline for both (PyTorch's own asks a CUDA device
for its rates; here they are the H100's, at the shares that `ljperf plan` takes). `--budget` adds
torch.compile's activation_memory_budget, which trains for real and so needs a quiet machine to say
anything about time.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import subprocess
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.ilp_utils import aggregate_stats, parse_module_info
from torch.distributed._tools.mem_tracker import MemTracker, _ModState
from torch.distributed._tools.runtime_estimator import RuntimeEstimator
from torch.distributed._tools.sac_estimator import SACEstimator
from torch.distributed._tools.sac_ilp import (
    get_optimal_checkpointing_policy_per_module,
    sac_milp,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from torch.utils.flop_counter import flop_registry

ROOT = Path(__file__).resolve().parent.parent.parent
GIB = 2**30
MIB = 2**20
# Of an H100, at the shares of its peaks that `ljperf plan` takes.
FLOPS, BYTES = 0.6 * 989.5e12, 0.8 * 3350e9
SIZES = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_hidden_layers": 4,
    "vocab_size": 8192,
    "max_position_embeddings": 4096,
}
SEQ, BATCH = 2048, 2


def operator_seconds(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    """Arithmetic or traffic, whichever takes longer."""
    if func.is_view or "detach" in str(func):
        return 0.0
    tensors = [t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
    moved = sum(t.numel() * t.element_size() for t in tensors)
    count = flop_registry.get(func._overloadpacket)
    flops = count(*args, **kwargs, out_val=out) if count else 0
    return max(flops / FLOPS, moved / BYTES)


def roofline(cls: Any, func: Any, args: Any, kwargs: Any) -> tuple[Any, float]:
    out = func(*args, **(kwargs or {}))
    return out, 1e3 * operator_seconds(func, args, kwargs or {}, out)  # milliseconds


class Clock(TorchDispatchMode):
    """Adds up the time of all operators executed."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.seconds += operator_seconds(func, args, kwargs or {}, out)
        return out


def build() -> Any:
    config = transformers.LlamaConfig(**SIZES, use_cache=False)  # type: ignore[arg-type]
    torch.set_default_dtype(torch.bfloat16)  # casting a fake model afterwards is refused
    try:
        return transformers.LlamaForCausalLM(config).train()
    finally:
        torch.set_default_dtype(torch.float32)


def step(model: Any) -> None:
    tokens = torch.zeros(BATCH, SEQ, dtype=torch.long)
    model(input_ids=tokens, labels=tokens).loss.backward()


def carry_out(apply: Any) -> tuple[int, float]:
    """Peak bytes, and seconds of all operators, of one step under a decision."""
    with FakeTensorMode():
        model = build()
        apply(model)
        tracker = MemTracker()
        tracker.track_external(model)
        with tracker:
            step(model)
        peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    with FakeTensorMode():
        model = build()
        apply(model)
        with Clock() as clock:
            step(model)
    return int(peak), clock.seconds


def ask_plan(*options: object) -> tuple[dict[str, Any], float]:
    """The answer of `ljperf plan` about the model, and the seconds it took."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps({"model_type": "llama", **SIZES}))
        words = [str(ROOT / ".venv/bin/ljperf"), "plan", "--json", "--config", str(config)]
        words += ["--devices", "1", "--engine", "ddp", "--precision", "bf16", "--device", "host"]
        words += ["--device-memory", "64GiB", "--seq", str(SEQ), "--micro-batch", str(BATCH)]
        start = time.perf_counter()
        done = subprocess.run(
            [*words, *map(str, options)], capture_output=True, text=True, check=False
        )
        elapsed = time.perf_counter() - start
    if done.returncode == 2:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout), elapsed


def our_decision(limit: float) -> Any:
    """Lines from `ljperf plan` that keep the step within the limit."""
    answer, elapsed = ask_plan("--limit", int(limit))
    settings = answer["settings"]
    attention = "_scaled_dot_product_flash_attention"
    lines = settings["python"].replace(attention + ".", attention + "_for_cpu.")

    def apply(model: Any) -> None:
        if settings["training_arguments"]["gradient_checkpointing"]:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        exec(textwrap.dedent(lines), {"model": model})

    return apply, answer, elapsed


def statistics_of_pytorch() -> tuple[Any, Any, Any]:
    RuntimeEstimator._roofline_estimate = classmethod(roofline)  # type: ignore[method-assign, assignment]
    with FakeTensorMode():
        model = build()
        step(model)  # gradients exist from the start
        memory, runtime, selective = MemTracker(), RuntimeEstimator(), SACEstimator()
        memory.track_external(model)
        with memory:
            step(model)
        with runtime("operator-level-cost-model"):
            step(model)
        with selective("operator-level-cost-model"):
            step(model)
        leave_out_constants(memory, runtime)
        info = aggregate_stats(model, memory, runtime, selective, torch.device("cpu"))
    return parse_module_info(info), selective, model


def leave_out_constants(memory: Any, runtime: Any) -> None:
    """Modules without a backward (rotary tables), at which aggregate_stats stops."""
    for module, stats in list(memory.memory_tracking.items()):
        if _ModState.PRE_BW not in stats.snapshots:
            del memory.memory_tracking[module]
            for order in (runtime.mod_fw_pre_order, runtime.mod_fw_post_order):
                if stats.mod_fqn in order:
                    order.remove(stats.mod_fqn)


def their_decision(graph: Any, selective: Any, limit: float) -> Any:
    layers = [f"LlamaForCausalLM.model.layers.{i}" for i in range(SIZES["num_hidden_layers"])]
    start = time.perf_counter()
    discarded, _, bound = sac_milp(graph, limit / GIB, world_size=1, ac_units=layers)
    saved = {
        name: get_optimal_checkpointing_policy_per_module(selective.sac_mod_stats[name], 1 - share)
        for name, share in discarded.items()
    }
    elapsed = time.perf_counter() - start

    def apply(model: Any) -> None:
        if not saved:
            return
        model.gradient_checkpointing_enable({"use_reentrant": False})
        for i, layer in enumerate(model.model.layers):
            if layers[i] not in saved:
                layer.gradient_checkpointing = False
                continue
            decisions = saved[layers[i]]
            layer._gradient_checkpointing_func = functools.partial(
                checkpoint,
                use_reentrant=False,
                context_fn=functools.partial(contexts_by_order, decisions),
            )

    return apply, bound, len(saved), elapsed


def contexts_by_order(decisions: list[int]) -> Any:
    """SAC contexts that keep the n-th operator where decisions[n] says so."""
    counts = {False: 0, True: 0}

    def policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        number = counts[context.is_recompute]
        counts[context.is_recompute] += 1
        keep = number < len(decisions) and decisions[number] == 1
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def budgets() -> list[list[str]]:
    """torch.compile's partitioner under activation_memory_budget, trained for real."""
    import torch._functorch.config as functorch
    from ljtrain import extension

    meter = extension.load()
    if meter is None:
        raise SystemExit("the measuring extension is not built")
    meter.allocator_install()
    rows = []
    for budget in (1.0, 0.75, 0.5, 0.25, 0.0):
        torch._dynamo.reset()
        functorch.activation_memory_budget = budget
        model = build()
        compiled = torch.compile(model)
        step(compiled)
        meter.allocator_reset_peak()
        start = time.perf_counter()
        step(compiled)
        seconds = time.perf_counter() - start
        peak = meter.allocator_statistics()["peak_bytes"]
        rows.append([f"budget {budget}", f"{peak / MIB:.0f}", f"{seconds:.2f}"])
    return rows


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def report(with_budget: bool) -> str:
    def everything(model: Any) -> None:
        model.gradient_checkpointing_enable({"use_reentrant": False})

    most, fastest = carry_out(lambda model: None)
    least, slowest = carry_out(everything)
    # ljperf plan counts a whole training, optimizer included; the step here has none. What does not
    # depend on recomputing is the difference of the two where nothing is recomputed.
    besides = ask_plan("--recompute", 0)[0]["predicted_peak_bytes"] - most
    graph, selective, _ = statistics_of_pytorch()
    rows = []
    for share in (0.85, 0.7, 0.55, 0.4, 0.25, 0.1):
        limit = least + share * (most - least)
        apply, answer, seconds = our_decision(limit + besides)
        peak, cost = carry_out(apply)
        ours = [f"{peak / MIB:.0f}", f"{100 * (cost / fastest - 1):.2f} %", f"{seconds:.2f}"]
        ours[0] += "" if peak <= limit else " (above)"
        if not answer["fits"]:
            ours = ["does not fit", "", ours[2]]
        apply, bound, _, seconds = their_decision(graph, selective, limit)
        if bound < 0:
            theirs = ["no solution", "", f"{seconds:.2f}"]
        else:
            peak, cost = carry_out(apply)
            theirs = [f"{peak / MIB:.0f}", f"{100 * (cost / fastest - 1):.2f} %", f"{seconds:.2f}"]
            theirs[0] += "" if peak <= limit else " (above)"
        rows.append([f"{limit / MIB:.0f}", *ours, *theirs])
    header = ["limit MiB", "ljperf plan: peak", "extra time", "solved in s"]
    header += ["sac_milp: peak", "extra time", "solved in s"]
    text = (
        f"# Plans beside PyTorch's solvers ({datetime.date.today()})\n\n"
        f"Llama, {SIZES['num_hidden_layers']} layers, hidden {SIZES['hidden_size']}, {BATCH} x "
        f"{SEQ} tokens, bf16, one rank, no optimizer. Peaks are MemTracker's on fake tensors "
        f"(weights and gradients included), extra time is that of recomputed operators by a "
        f"roofline. Nothing recomputed: {most / MIB:.0f} MiB; everything: {least / MIB:.0f} MiB, "
        f"{100 * (slowest / fastest - 1):.1f} % more time. `ljperf plan` was given "
        f"{besides / MIB:.0f} MiB more than the limit: the optimizer's state, which is not there."
        f"\n\n{table(header, rows)}"
    )
    if with_budget:
        text += "\n" + table(["torch.compile", "peak MiB", "step s"], budgets())
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="file for the report; else it is printed")
    parser.add_argument("--budget", action="store_true", help="activation_memory_budget, too")
    arguments = parser.parse_args()
    text = report(arguments.budget)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
