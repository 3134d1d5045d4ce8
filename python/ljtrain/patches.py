"""Every upstream name that ljtrain changes in memory, with the reason and the version it was
checked on.

Nothing on disk is changed. A patch goes here when no official extension point does the job, and
leaves when one does. (Official ones are used elsewhere: TrainerCallback, the entry point that
`import torch` runs, and in csrc kernels for c10d's operators and PyTorch's CPU allocator.)
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

TORCH, TRANSFORMERS = "torch 2.13.0", "transformers 5.24.0"
ACCELERATE, DEEPSPEED = "accelerate 1.15.0", "deepspeed 0.19.8"

Function = Callable[..., Any]


@dataclass(frozen=True)
class Patch:
    """`apply` changes `name` in memory, on the class or module or just on the instance it is
    given.
    """

    name: str
    reason: str
    checked_on: str
    apply: Callable[..., Any]
    # Upstream code that reads a name which no class declares, so that a rename is noticed there.
    read_by: str | None = None


# ---- collectives: LJTRAIN_ACCL=1 ----

# The class that stands for Gloo, while it does.
STAND_IN: dict[str, type] = {}


def _gloo_in_c10d(stand_in: type) -> None:
    module: Any = importlib.import_module("torch.distributed.distributed_c10d")
    STAND_IN["gloo"] = stand_in
    module.ProcessGroupGloo = stand_in


def _gloo_in_distributed(stand_in: type) -> None:
    module: Any = importlib.import_module("torch.distributed")
    STAND_IN["gloo"] = stand_in
    module.ProcessGroupGloo = stand_in


GLOO_IN_C10D = Patch(
    name="torch.distributed.distributed_c10d.ProcessGroupGloo",
    reason=(
        "register_backend takes new names only, and Trainer, DeepSpeed and accelerate ask for gloo "
        "by name; this is the class that c10d makes for that name, in debug mode too, and asks "
        "isinstance of."
    ),
    checked_on=TORCH,
    apply=_gloo_in_c10d,
)

GLOO_IN_DISTRIBUTED = Patch(
    name="torch.distributed.ProcessGroupGloo",
    reason="the same class by its public name, by which rpc makes its group",
    checked_on=TORCH,
    apply=_gloo_in_distributed,
)


class _UncountedPlugins(dict[str, Any]):
    """Plugins of which `keys()` leaves out the backend accl."""

    def keys(self) -> Any:
        return [name for name in self if name != "ACCL"]


def _uncounted_plugins() -> None:
    from torch.distributed import distributed_c10d

    if not isinstance(distributed_c10d.Backend._plugins, _UncountedPlugins):
        distributed_c10d.Backend._plugins = _UncountedPlugins(distributed_c10d.Backend._plugins)


UNCOUNTED_PLUGIN = Patch(
    name="torch.distributed.distributed_c10d.Backend._plugins",
    reason=(
        "once any backend is registered, a group that asks for `cpu:gloo` gets no default backend, "
        "and destroying it warns twice: c10d asks for the first key of this dictionary alone"
    ),
    checked_on=TORCH,
    apply=_uncounted_plugins,
)


def _no_shared_memory_operator() -> None:
    # Not by its dotted name: the package is still being imported when this runs.
    module: Any = importlib.import_module("deepspeed.comm.torch")
    module.build_shm_op = lambda: None


DEEPSPEED_SHARED_MEMORY = Patch(
    name="deepspeed.comm.torch.build_shm_op",
    reason=(
        "DeepSpeed compiles an all-reduce of its own on first use (a minute), which spins without "
        "a timeout and leaves files in /dev/shm; without it DeepSpeed calls c10d, as on machines "
        "where it cannot be built"
    ),
    checked_on=DEEPSPEED,
    apply=_no_shared_memory_operator,
)


# ---- training at all ----


def _fsdp2_on_hosts() -> None:
    import torch
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType
    from torch.distributed.fsdp import MixedPrecisionPolicy

    original = AcceleratorState.__init__
    if getattr(original, "ljtrain_patched", False):
        return

    @functools.wraps(original)
    def patched(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        plugin = kwargs.get("fsdp_plugin")
        if plugin is None or self.distributed_type != DistributedType.MULTI_CPU:
            return
        # What accelerate does for every other device, but gradients are reduced in float32, as
        # PyTorch's own trainers do, and outputs keep their type: in bfloat16 the loss would have
        # three digits.
        if self._mixed_precision == "bf16" and plugin.mixed_precision_policy is None:
            plugin.mixed_precision_policy = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32
            )
        self.fsdp_plugin = plugin
        self.distributed_type = DistributedType.FSDP
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    patched.ljtrain_patched = True  # type: ignore[attr-defined]
    AcceleratorState.__init__ = patched


FSDP2_ON_HOSTS = Patch(
    name="accelerate.state.AcceleratorState.__init__",
    reason=(
        "accelerate leaves CPU out of the devices that FSDP may run on and silently trains with "
        "DDP instead; with the state (its own and that of PartialState) set as on other devices "
        "its own FSDP2 path (fully_shard on each layer, embedding and head, bf16 parameters with "
        "float32 masters, DTensor gradient clipping) runs on Gloo unchanged"
    ),
    checked_on=ACCELERATE,
    apply=_fsdp2_on_hosts,
)


def _group_timeout(timeout: timedelta) -> None:
    from torch.distributed import distributed_c10d

    distributed_c10d.default_pg_timeout = timeout


def _nccl_group_timeout(timeout: timedelta) -> None:
    from torch.distributed import distributed_c10d

    distributed_c10d.default_pg_nccl_timeout = timeout


GROUP_TIMEOUT = Patch(
    name="torch.distributed.distributed_c10d.default_pg_timeout",
    reason=(
        "transformers passes ddp_timeout on for every device but hosts, and the groups that "
        "engines make for themselves (DeepSpeed's copy of the world) take no timeout from "
        "anybody: they all take this default"
    ),
    checked_on=TORCH,
    apply=_group_timeout,
)

NCCL_GROUP_TIMEOUT = Patch(
    name="torch.distributed.distributed_c10d.default_pg_nccl_timeout",
    reason="the same for the groups that engines make for themselves on GPUs",
    checked_on=TORCH,
    apply=_nccl_group_timeout,
)


def _shard_embedding_once(model: Any) -> None:
    embedding = model.get_input_embeddings()
    layers = set(model._no_split_modules or ())
    for module in model.modules():
        if type(module).__name__ in layers and any(part is embedding for part in module.modules()):
            layers.discard(type(module).__name__)
    model._no_split_modules = sorted(layers)


SHARD_EMBEDDING_ONCE = Patch(
    name="transformers.modeling_utils.PreTrainedModel._no_split_modules",
    reason=(
        "BERT lists its embeddings as a layer, but accelerate's FSDP2 shards the embedding inside "
        "on its own as well, and fully_shard fails"
    ),
    checked_on=TRANSFORMERS,
    apply=_shard_embedding_once,
)


def _forget_second_name_of_bias(model: Any) -> None:
    head = model.get_output_embeddings()
    bias = getattr(head, "bias", None)
    for module in model.modules():
        if bias is not None and module is not head and module._parameters.get("bias") is bias:
            module._parameters["bias"] = None


FORGET_SECOND_NAME_OF_BIAS = Patch(
    name="torch.nn.Module._parameters",
    reason=(
        "BERT's head names its decoder's bias a second time, outside of what forward uses and of "
        "what fully_shard shards"
    ),
    checked_on=TORCH,
    apply=_forget_second_name_of_bias,
)


def _own_mean_of_the_loss(model: Any) -> None:
    model.accepts_loss_kwargs = False


OWN_MEAN_OF_THE_LOSS = Patch(
    name="transformers.modeling_utils.PreTrainedModel.accepts_loss_kwargs",
    reason=(
        "BERT's forward takes any keyword, so the Trainer hands it the number of targets of all "
        "ranks and multiplies its loss by the ranks; but it divides by its own targets anyway"
    ),
    checked_on=TRANSFORMERS,
    apply=_own_mean_of_the_loss,
    read_by="transformers.trainer.Trainer",
)


# ---- compilation: torch_compile=True ----


def _default_callbacks(callback: type) -> None:
    module: Any = importlib.import_module("transformers.trainer")
    if callback not in module.DEFAULT_CALLBACKS:
        module.DEFAULT_CALLBACKS.append(callback)


DEFAULT_CALLBACKS = Patch(
    name="transformers.trainer.DEFAULT_CALLBACKS",
    reason="no entry point adds a TrainerCallback to the Trainers of a script that is not changed",
    checked_on=TRANSFORMERS,
    apply=_default_callbacks,
)


def _no_stock_compile() -> None:
    from accelerate.state import AcceleratorState
    from accelerate.utils import DynamoBackend

    AcceleratorState().dynamo_plugin.backend = DynamoBackend.NO


NO_STOCK_COMPILE = Patch(
    name="accelerate.utils.TorchDynamoPlugin.backend",
    reason=(
        "the Trainer hands torch_compile to accelerate, which compiles the model around the hooks "
        "of the engine; the layers are compiled inside of them instead"
    ),
    checked_on=ACCELERATE,
    apply=_no_stock_compile,
)


def _layer_forward(layer: Any, forward: Function) -> Callable[[], None]:
    """Returns what takes it back, so that the model can be copied and saved as any other."""
    layer.forward = forward
    return lambda: layer.__dict__.pop("forward", None)


LAYER_FORWARD = Patch(
    name="torch.nn.Module.forward",
    reason=(
        "Module.compile compiles __call__ with the hooks of the engine; on a layer's instance, "
        "forward is what they enclose"
    ),
    checked_on=TORCH,
    apply=_layer_forward,
)

_substituted: set[int] = set()


def _stock_linear_in_graphs() -> None:
    import torch

    wrapped = importlib.import_module("deepspeed.runtime.zero.linear").zero3_linear_wrap
    if id(wrapped) in _substituted:
        return

    @torch.compiler.substitute_in_graph(wrapped)
    def linear(input: Any, weight: Any, bias: Any = None) -> Any:
        return torch._C._nn.linear(input, weight, bias)

    _substituted.add(id(wrapped))


STOCK_LINEAR_IN_GRAPHS = Patch(
    name="deepspeed.runtime.zero.linear.zero3_linear_wrap",
    reason=(
        "an autograd function that gathers a weight again for the backward; where whole layers are "
        "gathered it has nothing to do, and with it no compiled result can be cached. Replaced by "
        "PyTorch's own linear in graphs only, by torch.compiler.substitute_in_graph"
    ),
    checked_on=DEEPSPEED,
    apply=_stock_linear_in_graphs,
)


def _setting(name: str, value: Any, reason: str) -> Patch:
    """A setting of PyTorch's compiler while a training lasts; `apply` returns what undoes it."""
    module_name, attribute = name.rsplit(".", maxsplit=1)

    def apply() -> Callable[[], None]:
        module: Any = importlib.import_module(module_name)
        before = getattr(module, attribute)
        setattr(module, attribute, value)
        return lambda: setattr(module, attribute, before)

    return Patch(name, reason, TORCH, apply)


def _fixed_order_of_graphs() -> Callable[[], None]:
    eval_frame: Any = importlib.import_module("torch._C._dynamo.eval_frame")
    eval_frame._set_lru_cache(False)
    return lambda: eval_frame._set_lru_cache(True)


def _kernels_in_batches() -> Callable[[], None]:
    from torch._inductor.async_compile import AsyncCompile

    from ljtrain import compile_kernels

    methods: Any = AsyncCompile
    before = (methods.cpp_pybinding, methods.wait)
    if compile_kernels.supported():
        methods.cpp_pybinding, methods.wait = compile_kernels.batched(*before)

    def back() -> None:
        methods.cpp_pybinding, methods.wait = before

    return back


def _trusted_processor() -> Callable[[], None]:
    config: Any = importlib.import_module("torch._inductor.config")
    before = config.cpp.vec_isa_ok
    if before is None:
        config.cpp.vec_isa_ok = True

    def back() -> None:
        config.cpp.vec_isa_ok = before

    return back


def _attention_patterns_on_demand() -> Callable[[], None]:
    from ljtrain import compile_patterns

    return compile_patterns.replace_loader()


COMPILER_SETTINGS = (
    _setting(
        "torch._dynamo.config.optimize_ddp",
        False,
        "DDP's hooks are outside of the layers, so graphs need not be split at its buckets",
    ),
    _setting(
        "torch._dynamo.config.suppress_errors",
        True,
        "a frame that cannot be compiled runs eagerly instead of ending the training",
    ),
    _setting(
        "torch._dynamo.config.capture_scalar_outputs",
        True,
        "item() stays in a graph, also where a layer is several graphs (fullgraph sets it anyway)",
    ),
    _setting(
        "torch._dynamo.config.capture_dynamic_output_shape_ops",
        True,
        "the same for shapes that depend on data",
    ),
    _setting(
        "torch._functorch.config.force_non_lazy_backward_lowering",
        True,
        "the backward is compiled with the forward, so that it cannot fail in a later step",
    ),
    Patch(
        name="torch._C._dynamo.eval_frame._set_lru_cache",
        reason=(
            "graphs are tried in the order in which they were made: last used first, a "
            "recomputation finds another one than its forward has used, and "
            "torch.utils.checkpoint ends the training (pytorch/pytorch#166926)"
        ),
        checked_on=TORCH,
        apply=_fixed_order_of_graphs,
    ),
    Patch(
        name="torch._inductor.fx_passes.fuse_attention._sfdp_init",
        reason=(
            "loads some sixty patterns before the first graph, all of which have a softmax; loaded "
            "when a graph has one"
        ),
        checked_on=TORCH,
        apply=_attention_patterns_on_demand,
    ),
)

KERNELS_IN_BATCHES = Patch(
    name="torch._inductor.async_compile.AsyncCompile.cpp_pybinding",
    reason=(
        "every kernel is a run of the C++ compiler, of which nine tenths read headers; with "
        "wait() of the same class, a graph's kernels become one file a processor, compiled "
        "while the next graph is lowered"
    ),
    checked_on=TORCH,
    apply=_kernels_in_batches,
)

TRUSTED_PROCESSOR = Patch(
    name="torch._inductor.config.cpp.vec_isa_ok",
    reason=(
        "Inductor compiles and loads a library for each instruction set that /proc/cpuinfo "
        "already names, four seconds in all; a compiler that does not know it costs the graph"
    ),
    checked_on=TORCH,
    apply=_trusted_processor,
)


# ---- recomputing: CHECKPOINT_OPTIMIZATION=true ----


def _of_every_trainer(name: str, reason: str) -> Patch:
    """`apply(wrapper)`: from then on every Trainer calls `wrapper(method, trainer, ...)`."""
    method = name.rsplit(".", maxsplit=1)[1]

    def apply(wrapper: Function) -> None:
        trainer: Any = importlib.import_module("transformers.trainer").Trainer
        original = getattr(trainer, method)
        if getattr(original, "ljtrain_patched", False):
            return

        @functools.wraps(original)
        def patched(self: Any, *args: Any, **kwargs: Any) -> Any:
            return wrapper(original, self, *args, **kwargs)

        patched.ljtrain_patched = True  # type: ignore[attr-defined]
        setattr(trainer, method, patched)

    return Patch(name, reason, TRANSFORMERS, apply)


BATCHES_OF_A_STEP = _of_every_trainer(
    "transformers.trainer.Trainer.get_batch_samples",
    "no callback sees the micro-batches of a step before the first of them is computed",
)
ONE_MICRO_BATCH = _of_every_trainer(
    "transformers.trainer.Trainer.training_step",
    "a step that ran out of memory is computed again, and no callback sees it fail",
)


# ---- measuring: methods of one run's instances, wrapped to book their time to a phase ----


def _wrapped(name: str, checked_on: str, reason: str) -> Patch:
    """`apply(owner, wrap)` replaces the method of that one instance by `wrap(method)`."""
    method = name.rsplit(".", maxsplit=1)[1]

    def apply(owner: Any, wrap: Callable[[Function], Function]) -> None:
        setattr(owner, method, wrap(getattr(owner, method)))

    return Patch(name, reason, checked_on, apply)


GET_BATCH_SAMPLES = _wrapped(
    "transformers.trainer.Trainer.get_batch_samples",
    TRANSFORMERS,
    "data: no callback sees fetching, or which samples a rank got",
)
PREPARE_INPUTS = _wrapped(
    "transformers.trainer.Trainer._prepare_inputs", TRANSFORMERS, "data: moving to the device"
)
TRAINING_STEP = _wrapped(
    "transformers.trainer.Trainer.training_step",
    TRANSFORMERS,
    "callbacks get the loss in logs only, averaged over ranks and steps",
)
COMPUTE_LOSS = _wrapped(
    "transformers.trainer.Trainer.compute_loss",
    TRANSFORMERS,
    "forward: no callback marks where it begins and ends",
)
CLIP_GRAD_NORM = _wrapped(
    "transformers.trainer.Trainer._clip_grad_norm", TRANSFORMERS, "optimizer: clipping"
)
GET_GRAD_NORM = _wrapped(
    "transformers.trainer.Trainer._get_grad_norm",
    TRANSFORMERS,
    "optimizer: the norm where the engine clips",
)
BACKWARD = _wrapped(
    "accelerate.accelerator.Accelerator.backward",
    ACCELERATE,
    "backward: no callback marks where it begins and ends",
)
OPTIMIZER_STEP = _wrapped(
    "accelerate.optimizer.AcceleratedOptimizer.step",
    ACCELERATE,
    "optimizer: callbacks mark only the whole of clipping and step",
)
SCHEDULER_STEP = _wrapped(
    "torch.optim.lr_scheduler.LRScheduler.step",
    TORCH,
    "optimizer: no callback (accelerate's wrapper has the same method)",
)
ZERO_GRAD = _wrapped("torch.nn.Module.zero_grad", TORCH, "optimizer: no callback")
DEEPSPEED_STEP = _wrapped(
    "deepspeed.runtime.engine.DeepSpeedEngine.step",
    DEEPSPEED,
    "optimizer: accelerate calls it inside backward",
)

ALL = (
    GLOO_IN_C10D,
    GLOO_IN_DISTRIBUTED,
    UNCOUNTED_PLUGIN,
    DEEPSPEED_SHARED_MEMORY,
    FSDP2_ON_HOSTS,
    GROUP_TIMEOUT,
    NCCL_GROUP_TIMEOUT,
    SHARD_EMBEDDING_ONCE,
    FORGET_SECOND_NAME_OF_BIAS,
    OWN_MEAN_OF_THE_LOSS,
    DEFAULT_CALLBACKS,
    NO_STOCK_COMPILE,
    LAYER_FORWARD,
    STOCK_LINEAR_IN_GRAPHS,
    *COMPILER_SETTINGS,
    BATCHES_OF_A_STEP,
    ONE_MICRO_BATCH,
    KERNELS_IN_BATCHES,
    TRUSTED_PROCESSOR,
    GET_BATCH_SAMPLES,
    PREPARE_INPUTS,
    TRAINING_STEP,
    COMPUTE_LOSS,
    CLIP_GRAD_NORM,
    GET_GRAD_NORM,
    BACKWARD,
    OPTIMIZER_STEP,
    SCHEDULER_STEP,
    ZERO_GRAD,
    DEEPSPEED_STEP,
)
