// Keys that DeepSpeed 0.19.8 and transformers 5.24 know; tests/test_doctor.py holds them against the
// installed packages.
#include "config_keys.h"

#include <array>

namespace ljtrain::ljperf {
namespace {

// DeepSpeed takes any other key at the top without a word.
constexpr auto kTop = std::to_array<std::string_view>({
    "activation_checkpointing", "aio", "allgather_size", "amp", "autotuning", "bf16", "bfloat16",
    "checkpoint", "comet", "comms_logger", "communication_data_type", "compile",
    "compression_training", "csv_monitor", "curriculum_learning", "data_efficiency",
    "data_types", "dataloader_drop_last", "datastates_ckpt", "disable_allgather",
    "disable_python_gc", "dump_state", "elasticity", "expert_parallel", "flops_profiler", "fp16",
    "fp32_allreduce", "gradient_accumulation_steps", "gradient_allreduce_op",
    "gradient_clipping", "gradient_predivide_factor", "hybrid_engine", "inference", "log_level",
    "managed_gradient_accumulation", "memory_breakdown", "monitor_config", "optimizer",
    "pipeline", "prescale_gradients", "progressive_layer_drop", "scheduler",
    "seq_parallel_communication_data_type", "sequence_parallel_size", "sparse_attention",
    "sparse_gradients", "steps_per_print", "tensor_parallel", "tensorboard", "timers",
    "torch_autocast", "train_batch_size", "train_micro_batch_size_per_gpu",
    "use_data_before_expert_parallelism", "vocabulary_size", "wall_clock_breakdown", "wandb",
    "weight_quantization", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
    "zero_optimization"});

constexpr auto kZeroOptimization = std::to_array<std::string_view>({
    "allgather_bucket_size", "allgather_partitions", "allgather_sequential", "compute_grad_norm",
    "contiguous_gradients", "cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory",
    "elastic_checkpoint", "enable_sanity_checks", "gather_16bit_weights_on_model_save",
    "ignore_unused_parameters", "leaf_module", "legacy_stage1", "load_from_fp32_weights",
    "log_trace_cache_warnings", "max_live_parameters", "max_reuse_distance",
    "memory_efficient_linear", "model_persistence_threshold", "module_granularity_threshold",
    "offload_optimizer", "offload_param", "overlap_comm", "override_module_apply",
    "param_persistence_threshold", "parameter_alignment", "pipeline_loading_checkpoint",
    "prefetch_bucket_size", "reduce_bucket_size", "reduce_scatter", "round_robin_gradients",
    "save_muon_momentum_buffer_in_memory", "stage", "stage3_allgather_sequential",
    "stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save",
    "stage3_max_live_parameters", "stage3_max_reuse_distance",
    "stage3_model_persistence_threshold", "stage3_module_granularity_threshold",
    "stage3_param_persistence_threshold", "stage3_prefetch_bucket_size",
    "stage3_use_all_reduce_for_fetch_params", "sub_group_size",
    "use_all_reduce_for_fetch_params", "use_multi_rank_bucket_allreduce", "zenflow",
    "zero_hpz_partition_size", "zero_quantized_gradients", "zero_quantized_nontrainable_weights",
    "zero_quantized_weights"});

constexpr auto kZeroOptimizationOffloadParam = std::to_array<std::string_view>({
    "buffer_count", "buffer_size", "device", "max_in_cpu", "nvme_path", "pin_memory"});

constexpr auto kZeroOptimizationOffloadOptimizer = std::to_array<std::string_view>({
    "buffer_count", "cpuadam_cores_perc", "device", "fast_init", "nvme_path", "pin_memory",
    "pipeline_read", "pipeline_write", "ratio", "super_offload"});

constexpr auto kZeroOptimizationLeafModule = std::to_array<std::string_view>({
    "classes", "name_suffixes", "names"});

constexpr auto kBf16 = std::to_array<std::string_view>({
    "bf16_master_weights_and_grads", "bf16_optimizer_states", "check_grad_overflow",
    "check_overflow", "enabled", "immediate_grad_update"});

constexpr auto kFp16 = std::to_array<std::string_view>({
    "auto_cast", "consecutive_hysteresis", "enabled", "fp16_master_weights_and_grads",
    "hysteresis", "initial_scale_power", "loss_scale", "loss_scale_window", "min_loss_scale"});

constexpr auto kCompile = std::to_array<std::string_view>({
    "autoep_non_moe", "debug_log", "deepcompile", "double_buffer", "free_activation",
    "free_activation_threshold", "keep_all_input_tensors", "keep_int_input_tensors",
    "offload_activation", "offload_activation_pin_memory", "offload_opt_states",
    "offload_parameters", "passes", "symmetric_memory", "sync_after_allgather",
    "sync_after_reduce", "sync_before_allgather", "sync_before_reduce"});

constexpr auto kCommsLogger = std::to_array<std::string_view>({
    "debug", "enabled", "prof_all", "prof_ops", "verbose"});

// transformers' TrainingArguments.
constexpr auto kArguments = std::to_array<std::string_view>({
    "accelerator_config", "activation_checkpointing", "activation_checkpointing_kwargs",
    "adam_beta1", "adam_beta2", "adam_epsilon", "auto_find_batch_size",
    "average_tokens_across_devices", "batch_eval_metrics", "bf16", "bf16_full_eval", "data_seed",
    "dataloader_drop_last", "dataloader_in_order", "dataloader_multiprocessing_context",
    "dataloader_num_workers", "dataloader_persistent_workers", "dataloader_pin_memory",
    "dataloader_prefetch_factor", "ddp_backend", "ddp_broadcast_buffers", "ddp_bucket_cap_mb",
    "ddp_find_unused_parameters", "ddp_static_graph", "ddp_timeout", "debug", "deepspeed",
    "disable_tqdm", "do_eval", "do_predict", "do_train", "enable_jit_checkpoint",
    "eval_accumulation_steps", "eval_delay", "eval_do_concat_batches", "eval_on_start",
    "eval_steps", "eval_strategy", "eval_use_gather_object", "fp16", "fp16_full_eval", "fsdp",
    "fsdp_config", "full_determinism", "gradient_accumulation_steps", "gradient_checkpointing",
    "gradient_checkpointing_kwargs", "greater_is_better", "hub_always_push", "hub_model_id",
    "hub_private_repo", "hub_revision", "hub_strategy", "hub_token", "ignore_data_skip",
    "include_for_metrics", "include_num_input_tokens_seen", "label_names",
    "label_smoothing_factor", "learning_rate", "length_column_name", "liger_kernel_config",
    "load_best_model_at_end", "local_rank", "log_level", "log_level_replica", "log_on_each_node",
    "logging_first_step", "logging_nan_inf_filter", "logging_steps", "logging_strategy",
    "lr_scheduler_kwargs", "lr_scheduler_type", "max_grad_norm", "max_steps",
    "metric_for_best_model", "neftune_noise_alpha", "num_train_epochs", "optim", "optim_args",
    "optim_target_modules", "output_dir", "parallelism_config", "per_device_eval_batch_size",
    "per_device_train_batch_size", "prediction_loss_only", "project", "push_to_hub",
    "remove_unused_columns", "report_to", "restore_callback_states_from_checkpoint",
    "resume_from_checkpoint", "run_name", "save_on_each_node", "save_only_model", "save_steps",
    "save_strategy", "save_total_limit", "seed", "skip_memory_metrics", "tf32", "torch_compile",
    "torch_compile_backend", "torch_compile_mode", "torch_empty_cache_steps",
    "trackio_bucket_id", "trackio_space_id", "trackio_static_space_id",
    "train_sampling_strategy", "use_cache", "use_cpu", "use_liger_kernel", "warmup_steps",
    "weight_decay"});

// Sections whose models refuse unknown keys (extra="forbid").
constexpr auto kSections = std::to_array<KnownSection>({
    {"/zero_optimization", kZeroOptimization},
    {"/zero_optimization/offload_param", kZeroOptimizationOffloadParam},
    {"/zero_optimization/offload_optimizer", kZeroOptimizationOffloadOptimizer},
    {"/zero_optimization/leaf_module", kZeroOptimizationLeafModule},
    {"/bf16", kBf16},
    {"/fp16", kFp16},
    {"/compile", kCompile},
    {"/comms_logger", kCommsLogger},
});

}  // namespace

std::span<const std::string_view> deepspeed_keys() { return kTop; }
std::span<const KnownSection> deepspeed_sections() { return kSections; }
std::span<const std::string_view> training_argument_keys() { return kArguments; }

}  // namespace ljtrain::ljperf
