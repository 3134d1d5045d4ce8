"""What the compile tests run on each rank: trainings of small models, eager and compiled, many in
one process, as importing takes longer than they do.

`python compile_ranks.py CASES.json RESULT.json`; CASES.json is a list of {"case", ...} for `run`.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._dynamo.backends.registry import lookup_backend
from torch.utils.data import DataLoader
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments, set_seed

VOCABULARY, SEQ, BATCH = 512, 32, 2
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    # Two kinds in one model: sliding and full attention differ in a setting only.
    "gemma3": {
        **LLAMA,
        "model_type": "gemma3_text",
        "head_dim": 16,
        "num_hidden_layers": 4,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "tie_word_embeddings": True,
    },
    # Dense layers and mixtures of experts under one class.
    "qwen3_moe": {
        **LLAMA,
        "model_type": "qwen3_moe",
        "head_dim": 16,
        "num_hidden_layers": 4,
        "moe_intermediate_size": 32,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "mlp_only_layers": [0, 2],
    },
}


def deepspeed_config(stage: int, **zero: Any) -> dict[str, Any]:
    auto = {"stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": 0}
    return {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": stage, **(auto if stage == 3 else {}), **zero},
    }


class ScriptedTrainer(Trainer):
    """Trains on the batches it is given, in their order."""

    batches: list[dict[str, torch.Tensor]]

    def get_train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.batches, batch_size=None)  # type: ignore[arg-type]

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        return DataLoader(self.batches[:2], batch_size=None)  # type: ignore[arg-type]


def batches(lengths: list[int], rank: int) -> list[dict[str, torch.Tensor]]:
    made = []
    for number, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(1000 * number + rank)
        ids = torch.randint(1, VOCABULARY, (BATCH, length), generator=generator)
        made.append({"input_ids": ids, "labels": ids.clone()})
    return made


def llm(name: str) -> nn.Module:
    content = dict(MODELS[name])
    config = AutoConfig.for_model(content.pop("model_type"), **content)
    model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model


def freeze_all_but(model: nn.Module, part: str) -> None:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part in name)


def reset() -> None:
    """Forgets the last training, so that the next one of this process may be another."""
    from accelerate.state import AcceleratorState
    from transformers.integrations import unset_hf_deepspeed_config

    AcceleratorState._reset_state()
    unset_hf_deepspeed_config()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    gc.collect()
    # Arguments of one engine leave their mark for accelerate.
    for engine in ("DEEPSPEED", "FSDP"):
        os.environ.pop(f"ACCELERATE_USE_{engine}", None)


def arguments(folder: str, case: dict[str, Any], compiled: bool) -> TrainingArguments:
    steps = len(case["lengths"]) // case.get("accumulation", 1)
    options: dict[str, Any] = {
        "output_dir": folder,
        "max_steps": steps,
        "bf16": True,
        "use_cpu": True,
        "ddp_backend": "gloo",
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": case.get("accumulation", 1),
        "gradient_checkpointing": case.get("checkpointing", True),
        "learning_rate": 1e-3,
        "disable_tqdm": True,
        "report_to": "none",
        "logging_strategy": "steps",
        "logging_steps": 1,
        "save_strategy": "no",
        "torch_compile": compiled,
    }
    if case.get("checkpoint_after"):
        options |= {"save_strategy": "steps", "save_steps": case["checkpoint_after"]}
        options |= {"ignore_data_skip": True}  # the batches are those of the steps left
    if "reentrant" in case:
        options["gradient_checkpointing_kwargs"] = {"use_reentrant": case["reentrant"]}
    if case.get("evaluate"):
        options |= {"eval_strategy": "steps", "eval_steps": 1}
    engine = case["engine"]
    if engine.startswith("zero"):
        options["deepspeed"] = deepspeed_config(int(engine[-1]), **case.get("zero", {}))
    if engine == "fsdp":
        options["fsdp"] = True
    return TrainingArguments(**options)


def named_backend(name: str) -> Any:
    if name == "inductor":
        return torch._TorchCompileInductorWrapper("default", None, None)
    if name not in ("broken", "broken_later_on_rank_1"):
        return lookup_backend(name)
    calls = []

    def backend(module: Any, inputs: Any) -> Any:
        calls.append(module)
        later = name == "broken" or (len(calls) > 1 and os.environ["RANK"] == "1")
        if later:
            raise RuntimeError("this compiler is broken")
        return lookup_backend("aot_eager")(module, inputs)

    return backend


def prepare_compiler(case: dict[str, Any]) -> None:
    """`backend`: another one behind Dynamo than Inductor, which compiles no C++. `keep`: what is
    compiled is kept whatever the clock says, as tests run on machines that do other things.
    """
    from ljtrain import compile_backend, compile_cache, compile_trial

    compile_cache.place = Path(case["decisions"])

    chosen = named_backend(case.get("backend", "inductor"))
    compile_backend.RecordingBackend._inductor = property(lambda _: chosen, lambda *_: None)
    if case.get("keep", True):
        compile_trial.compare = lambda *_: (2.0, 1.0) if not case.get("slower") else (1.0, 2.0)


def train(case: dict[str, Any], compiled: bool) -> dict[str, Any]:
    """One training; the losses, and what ljtrain reports."""
    reset()
    prepare_compiler(case)
    rank = int(os.environ["RANK"])
    if case["engine"] == "fsdp":
        from ljtrain import patches

        patches.FSDP2_ON_HOSTS.apply()
    with tempfile.TemporaryDirectory() as folder:
        options = arguments(case.get("output", folder), case, compiled)
        set_seed(7)
        model = build(case)
        if case.get("trainable"):
            freeze_all_but(model, case["trainable"])
        if case.get("lora"):
            from peft import LoraConfig, get_peft_model

            model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
        trainer = ScriptedTrainer(model=model, args=options, eval_dataset=[0])
        done = case["checkpoint_after"] if case.get("resume_from") else 0
        trainer.batches = batches(case["lengths"], rank)[done:]
        began = time.perf_counter()
        trainer.train(resume_from_checkpoint=case.get("resume_from"))
        result = {
            "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
            "grad_norms": [
                entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry
            ],
            "evaluated": [
                entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry
            ],
            "seconds": time.perf_counter() - began,
            "counters": {
                name: dict(values) for name, values in torch._dynamo.utils.counters.items()
            },
        }
        if case.get("save"):
            trainer.save_model(f"{folder}/saved")
            result["keys"] = sorted(saved_keys(f"{folder}/saved"))
            if rank == 0 and result["keys"]:
                result["reloaded"] = reloads(f"{folder}/saved")
        module = sys.modules.get("ljtrain.compile")
        if compiled and module and "construct" in case:
            result |= wrong_lines(case["construct"], corpus_lines(module))
        result["report"] = module.report()[-1] if compiled and module and module.report() else None
        engine = getattr(trainer.accelerator, "deepspeed_engine_wrapped", None)
        if engine is not None:
            engine.engine.destroy()
    return result


def wrong_lines(name: str, compiled: set[tuple[str, int]]) -> dict[str, list[str]]:
    """Lines of the corpus that are in no graph and should be, and those that should not."""
    import compile_corpus

    def source(lines: set[tuple[str, int]]) -> list[str]:
        folder = Path(__file__).parent
        return [
            (folder / file).read_text().splitlines()[line - 1].strip()
            for file, line in sorted(lines)
        ]

    wanted, eager = compile_corpus.marked_lines(name)
    return {"not_compiled": source(wanted - compiled), "compiled_too": source(eager & compiled)}


def corpus_lines(module: Any) -> set[tuple[str, int]]:
    """Lines of the corpus that are in the graphs that train."""
    return {
        (Path(file).name, line)
        for kind in module._reports[-1].kinds
        for variant in kind.variants.values()
        for graph in variant.recorder.graphs
        if graph.compiled
        for file, line in graph.lines
        if Path(file).name.startswith("compile_corpus")
    }


def reloads(folder: str) -> bool:
    """Whether an uncompiled model takes the checkpoint as it is."""
    from transformers.integrations import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()  # rank 0 loads alone
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    found = loaded[1]
    return not found["missing_keys"] and not found["unexpected_keys"]


def saved_keys(folder: str) -> list[str]:
    from safetensors import safe_open

    keys: list[str] = []
    for path in Path(folder).glob("*.safetensors"):
        with safe_open(str(path), "pt") as file:
            keys += list(file.keys())
    return keys


def build(case: dict[str, Any]) -> nn.Module:
    if "construct" in case:
        import compile_corpus

        if case["construct"] == "cpp_operator":
            compile_corpus.load_cpp_operator()
        return compile_corpus.build(case["construct"])
    return llm(case.get("model", "llama"))


def run(case: dict[str, Any]) -> dict[str, Any]:
    """Eager and compiled, on the same data."""
    case = {"lengths": [SEQ] * 3, "engine": "zero3", **case}
    if case.get("checkpoint_after"):
        return resume(case)
    return {
        "case": case,
        "eager": train(copy.deepcopy(case), False),
        "compiled": train(copy.deepcopy(case), True),
    }


def resume(case: dict[str, Any]) -> dict[str, Any]:
    """Each way's checkpoint taken up by the other way, too."""
    results: dict[str, Any] = {"case": case}
    for way, compiled in (("eager", False), ("compiled", True)):
        output = f"{case['decisions']}-{way}"
        results[way] = train({**case, "output": output}, compiled)
        checkpoint = f"{output}/checkpoint-{case['checkpoint_after']}"
        results[f"from {way}"] = train({**case, "resume_from": checkpoint}, not compiled)
    return results


def main(cases: str, result: str) -> None:
    results = []
    for number, case in enumerate(json.loads(Path(cases).read_text())):
        decisions = Path(cases).parent / f"decisions{case.get('start_again', number)}"
        case["decisions"] = str(decisions)
        began = time.perf_counter()
        try:
            results.append(run(case))
        except Exception:
            results.append({"case": case, "error": traceback.format_exc()})
        results[-1]["took_s"] = time.perf_counter() - began
        Path(result).write_text(json.dumps(results, default=str))
        if "error" in results[-1] and int(os.environ["WORLD_SIZE"]) > 1:
            break  # the other rank may be somewhere else now
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
