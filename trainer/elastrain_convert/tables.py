"""What a converted script may use of a framework: the classes, options and calls that tests of the adapters name. All
else becomes a line for a person."""

from __future__ import annotations

import re

from elastrain_convert.known import words
from elastrain_convert.script import matcher

ANY: frozenset[str] = frozenset()
"""Of an option: each value."""
SIMPLE = words("True False None")
ARGUMENTS: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        words(
            """
            output_dir num_train_epochs max_steps learning_rate weight_decay warmup_steps max_grad_norm
            per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps logging_steps
            save_steps eval_steps seed adam_beta1 adam_beta2 adam_epsilon save_total_limit
            """
        ),
        ANY,
    ),
    **dict.fromkeys(
        words(
            """
            bf16 fp16 use_cpu remove_unused_columns load_best_model_at_end greater_is_better do_train do_eval
            dataloader_drop_last disable_tqdm
            """
        ),
        SIMPLE,
    ),
    "lr_scheduler_type": words("linear cosine constant constant_with_warmup polynomial"),
    "eval_strategy": words("no steps epoch"),
    "save_strategy": words("no steps epoch"),
    "logging_strategy": words("no steps epoch"),
    "report_to": words("none tensorboard wandb"),
    "optim": words("adamw_torch adamw_torch_fused sgd"),
}
"""Options of TrainingArguments, with the values that are seen to be served."""
OF_TRL = {
    "SFTConfig": words("max_length dataset_text_field"),
    "DPOConfig": words("beta max_length"),
    "SFTTrainer": frozenset(),
    "DPOTrainer": frozenset({"ref_model"}),
}
"""TRL's classes that tests name, with their own options."""
OF_TRAINER = words(
    """
    model args train_dataset eval_dataset data_collator processing_class compute_metrics compute_loss_func callbacks
    """
)
CALLS_OF_TRAINER = words(
    """
    train evaluate save_model is_world_process_zero get_train_dataloader state model
    """
)
OF_ACCELERATOR = words("cpu gradient_accumulation_steps mixed_precision log_with project_dir")
CALLS_OF_ACCELERATOR = words(
    """
    prepare backward accumulate clip_grad_norm_ clip_grad_value_ unwrap_model print is_main_process
    is_local_main_process gather_for_metrics wait_for_everyone save save_model get_state_dict device sync_gradients
    init_trackers log end_training num_processes scaler autocast
    """
)
OF_LIGHTNING: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        words(
            """
            max_epochs max_steps gradient_clip_val log_every_n_steps default_root_dir devices num_nodes
            """
        ),
        ANY,
    ),
    **dict.fromkeys(
        words(
            """
            enable_checkpointing enable_progress_bar enable_model_summary logger deterministic
            use_distributed_sampler
            """
        ),
        SIMPLE,
    ),
    "accelerator": words("cpu gpu cuda auto"),
    "strategy": words("auto ddp"),
    "callbacks": ANY,
}
CALLS_OF_LIGHTNING = words(
    """
    fit test validate is_global_zero global_step current_epoch callback_metrics sanity_checking
    """
)
HOOKS = words(
    """
    __init__ forward training_step validation_step test_step predict_step configure_optimizers train_dataloader
    val_dataloader test_dataloader predict_dataloader setup prepare_data
    """
)
"""Methods of modules and data modules that may be overridden."""
OF_HOOKS = re.compile(
    r"on_\w+|optimizer_\w+|configure_\w+|lr_scheduler_\w+|\w*backward|transfer_\w+|toggle_\w+|state_dict|load_state_dict"
)

CALLBACKS = matcher(
    r"transformers\.(\w+\.)*EarlyStoppingCallback|(lightning|pytorch_lightning)\.(\w+\.)*(EarlyStopping|ModelCheckpoint)"
)
OF_CALLBACKS = words(
    """
    monitor patience mode min_delta verbose dirpath filename save_top_k every_n_epochs early_stopping_patience
    early_stopping_threshold
    """
)

is_framework = matcher(
    r"(transformers|trl|accelerate|lightning|pytorch_lightning|lightning_fabric)\.(\w+\.)*"
    r"(\w*Trainer|\w*TrainingArguments|\w*Parser|Accelerator|PartialState|Fabric|LightningCLI|\w*Plugin|\w*Strategy|LocalSGD|\w*Tuner)"
)
