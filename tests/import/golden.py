"""golden.py - translations of other trainers' files, with results written by hand.

    golden.py TRIREME        run all cases in the current directory; exit 1 and the difference when one is wrong

A case is: name, files, options that come out, and the keys of the lists differs, cannot and unknown. Of options only what
is written here counts as right: nothing more and nothing less may come out.
"""
import json
import pathlib
import subprocess
import sys

ZERO = {"overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": "auto"}
AUTO_BATCH = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
              "gradient_clipping": "auto"}
AUTO_ADAM = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}
FP16 = {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2, "min_loss_scale": 1}


def ds(**more):
    return {"ds.json": more}


LF = """model_name_or_path: models/tiny
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: %s
dataset_dir: lfdata
dataset: identity,chats
template: llama3
cutoff_len: 1024
overwrite_cache: true
preprocessing_num_workers: 16
output_dir: saves/x
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
report_to: none
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
resume_from_checkpoint: null
"""
LF_OUT = {"model": "models/tiny", "data": ["lfdata/identity.jsonl", "lfdata/chats.jsonl"], "chat_template": "llama3",
          "sequence_length": 1024, "output": "saves/x", "logging_steps": 10, "save_steps": 500, "per_device_train_batch_size": 1,
          "gradient_accumulation_steps": 8, "learning_rate": 1e-4, "num_train_epochs": 3, "lr_scheduler_type": "cosine",
          "warmup_steps": 0.1, "dtype": "bfloat16", "ddp_timeout": 1000000, "packing": "none", "recompute": "block"}
INFO = {"identity": {"file_name": "identity.jsonl"},
        "chats": {"file_name": "chats.jsonl", "formatting": "sharegpt", "columns": {"messages": "conversations"}},
        "books": {"file_name": "books.jsonl", "columns": {"prompt": "text"}},
        "odd": {"file_name": "odd.jsonl", "columns": {"prompt": "question", "response": "answer"}},
        "hub": {"hf_hub_url": "org/hub"},
        "tagged": {"file_name": "t.jsonl", "formatting": "sharegpt", "columns": {"messages": "dialog", "tools": "functions"},
                   "tags": {"role_tag": "who", "content_tag": "what", "user_tag": "client", "assistant_tag": "bot", "observation_tag": "observation"}},
        "plain": {"file_name": "p.jsonl", "formatting": "sharegpt", "columns": {"messages": "messages"},
                  "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant", "system_tag": "system"}},
        "pairs": {"file_name": "r.json", "ranking": True, "formatting": "sharegpt", "columns": {"messages": "conv", "chosen": "good", "rejected": "bad"}},
        "labels": {"file_name": "k.json", "formatting": "sharegpt", "columns": {"messages": "messages", "kto_tag": "liked"},
                   "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}},
        "few": {"file_name": "f.jsonl", "num_samples": 10}}
AX = """base_model: models/tiny
datasets:
  - path: a.jsonl
    type: chat_template
val_set_size: 0.05
output_dir: ./out
sequence_len: 2048
sample_packing: true
gradient_accumulation_steps: 4
micro_batch_size: 2
num_epochs: 1
learning_rate: 2e-5
bf16: auto
tf32: false
gradient_checkpointing: true
logging_steps: 1
attn_implementation: flash_attention_2
warmup_ratio: 0.1
weight_decay: 0.0
wandb_project:
"""
AX_OUT = {"model": "models/tiny", "data": ["a.jsonl"], "eval_split": 0.05, "output": "./out", "sequence_length": 2048,
          "packing": "bestfit", "gradient_accumulation_steps": 4, "per_device_train_batch_size": 2, "num_train_epochs": 1,
          "per_device_eval_batch_size": 2, "learning_rate": 2e-5, "dtype": "bfloat16", "recompute": "block", "logging_steps": 1, "warmup_steps": 0.1,
          "weight_decay": 0, "lr_scheduler_type": "cosine", "long_documents": "drop", "save_strategy": "epoch", "save_total_limit": 4}
TUNE = """output_dir: /tmp/out
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: /tmp/m/original/tokenizer.model
  max_seq_len: 1024
model:
  _component_: torchtune.models.llama3_2.%sllama3_2_1b
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: /tmp/m
  checkpoint_files: [model.safetensors]
  recipe_checkpoint: null
  output_dir: ${output_dir}
  model_type: LLAMA3_2
resume_from_checkpoint: False
dataset:
  _component_: torchtune.datasets.instruct_dataset
  source: json
  data_files: a.jsonl
  packed: False
seed: null
shuffle: True
batch_size: 4
epochs: 2
max_steps_per_epoch: 50
gradient_accumulation_steps: 8
optimizer:
  _component_: torch.optim.AdamW
  lr: 2e-5
  fused: True
loss:
  _component_: torchtune.modules.loss.LinearCrossEntropyLoss
clip_grad_norm: null
compile: False
device: cpu
enable_activation_checkpointing: True
dtype: %s
log_every_n_steps: 1
log_peak_memory_stats: True
metric_logger:
  _component_: torchtune.training.metric_logging.DiskLogger
  log_dir: ${output_dir}/logs
"""
JINJA = "{# turns #}{% for m in messages %}{{ m.content }}\n{% endfor %}" + "{# " + "x" * 5000 + " #}"
TUNE_OUT = {"output": "/tmp/out", "sequence_length": 1024, "model": "/tmp/m", "packing": "none",
            "data": [{"path": "a.jsonl", "format": "alpaca", "columns": {"instruction": "input", "input": None}}],
            "per_device_train_batch_size": 4, "num_train_epochs": 2, "max_steps": 100, "gradient_accumulation_steps": 8, "optim": "adamw",
            "learning_rate": 2e-5, "weight_decay": 0.01, "lr_scheduler_type": "constant", "max_grad_norm": 0, "device": "cpu",
            "recompute": "block", "logging_steps": 1, "save_strategy": "epoch"}
ACC = """compute_environment: LOCAL_MACHINE
debug: false
distributed_type: %s
downcast_bf16: 'no'
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: %d
num_processes: 8
rdzv_backend: static
same_network: true
use_cpu: false
%s"""


def without(d, *keys, **more):
    return {**{k: v for k, v in d.items() if k not in keys}, **more}


CASES = [
    # name, files, options, differs, cannot, unknown
    ("stage 0", ds(**AUTO_BATCH, zero_optimization={"stage": 0, **ZERO}, bf16={"enabled": "auto"}), {"zero": 0}, [], [], []),
    ("stage 1", ds(**AUTO_BATCH, zero_optimization={"stage": 1}, bf16={"enabled": True}), {"zero": 1, "dtype": "bfloat16"}, [], [], []),
    ("stage 2", ds(**AUTO_BATCH, zero_optimization={"stage": 2, **ZERO, "allgather_bucket_size": 5e8}, fp16=FP16, optimizer=AUTO_ADAM),
     {"zero": 2, "optim": "adamw"}, [], [], []),
    ("stage 3", ds(**AUTO_BATCH, zero_optimization={"stage": 3, **ZERO, "stage3_prefetch_bucket_size": "auto", "max_live_parameters": 0,
                                                    "stage3_param_persistence_threshold": "auto", "sub_group_size": 1e9,
                                                    "stage3_gather_16bit_weights_on_model_save": True}), {"zero": 3}, [], [], []),
    ("old stage", ds(train_batch_size=8, zero_optimization=True), {"train_batch_size": 8, "zero": 1, "max_grad_norm": 0}, [], [], []),
    ("offload", ds(train_batch_size="auto", gradient_clipping=1.0,
                   zero_optimization={"stage": 3, "offload_param": {"device": "none", "pin_memory": True}, "offload_optimizer": {"device": "nvme", "nvme_path": "/x"}}),
     {"zero": 3, "max_grad_norm": 1, "offload_optimizer": "nvme:/x"}, [], [], []),
    ("numbers as text", ds(train_micro_batch_size_per_gpu="8", gradient_accumulation_steps=4.0, gradient_clipping="1e0", steps_per_print=2e3),
     {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "max_grad_norm": 1, "logging_steps": 2000}, [], [], []),
    ("optimizer", ds(train_batch_size=16, optimizer={"type": "Adam", "params": {"lr": 1e-3, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
                     scheduler={"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-3, "warmup_num_steps": 1000, "warmup_type": "linear"}}),
     {"train_batch_size": 16, "optim": "adamw", "adam_beta1": 0.8, "adam_beta2": 0.999, "adam_epsilon": 1e-8, "weight_decay": 3e-7,
      "lr_scheduler_type": "constant_with_warmup", "learning_rate": 1e-3, "warmup_steps": 1000, "max_grad_norm": 0}, [], [], []),
    ("what is not here", ds(train_batch_size=4, gradient_clipping=1, fp16={"enabled": True, "loss_scale": 128}, optimizer={"type": "OneBitAdam"}, eigenvalue={"enabled": True},
                            zero_optimisation={"stage": 1}),
     {"train_batch_size": 4, "max_grad_norm": 1, "dtype": "float16"}, [], ["fp16.loss_scale", "optimizer.type", "eigenvalue.enabled"], ["zero_optimisation.stage"]),
    ("ulysses, tensor", ds(train_micro_batch_size_per_gpu=1, gradient_clipping=0, sequence_parallel_size=4, tensor_parallel={"autotp_size": 2}, communication_data_type="bf16",
                           bf16={"enabled": True, "bf16_optimizer_states": True}),
     {"per_device_train_batch_size": 1, "max_grad_norm": 0, "cp": 4, "cp_mode": "ulysses", "tp": 2, "reduce_dtype": "bf16", "dtype": "bfloat16",
      "moment_dtype": "bfloat16"}, [], [], []),

    ("accelerate ddp", {"a.yaml": ACC % ("MULTI_GPU", 1, "gpu_ids: all\n")}, {"dtype": "bfloat16"}, [], [], []),
    ("accelerate fsdp", {"a.yaml": ACC % ("FSDP", 1, "fsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_activation_checkpointing: true\n"
                                          "  fsdp_offload_params: false\n  fsdp_state_dict_type: FULL_STATE_DICT\n")},
     {"dtype": "bfloat16", "zero": 2, "recompute": "block"}, [], [], []),
    ("accelerate fsdp 2", {"a.yaml": ACC % ("FSDP", 2, "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: true\n")},
     {"dtype": "bfloat16", "zero": 3}, [], [], []),
    ("accelerate hybrid", {"a.yaml": ACC % ("FSDP", 2, "fsdp_config:\n  fsdp_sharding_strategy: HYBRID_SHARD\n")},
     {"dtype": "bfloat16", "zero": 3, "hybrid_shard": 4}, [], [], []),
    ("accelerate deepspeed", {"a.yaml": ACC % ("DEEPSPEED", 1, "deepspeed_config:\n  gradient_accumulation_steps: 1\n  offload_optimizer_device: none\n"
                                               "  zero3_init_flag: false\n")},
     {"dtype": "bfloat16", "gradient_accumulation_steps": 1, "zero": 2}, [], [], []),
    ("accelerate names a file", {"a.yaml": ACC % ("DEEPSPEED", 1, "deepspeed_config:\n  deepspeed_config_file: ds.json\n"),
                                 "+ds.json": json.dumps({**AUTO_BATCH, "zero_optimization": {"stage": 3}})},
     {"dtype": "bfloat16", "zero": 3}, [], [], []),
    ("accelerate shards", {"a.yaml": ACC % ("FSDP", 1, "parallelism_config:\n  parallelism_config_dp_replicate_size: 2\n  parallelism_config_dp_shard_size: 2\n"
                                            "  parallelism_config_tp_size: 2\n")},
     {"dtype": "bfloat16", "zero": 3, "hybrid_shard": 2, "tp": 2}, [], [], []),

    ("arguments", {"a.json": json.dumps({"output_dir": "o", "per_device_train_batch_size": 4, "learning_rate": 2e-5, "bf16": True, "tf32": True,
                                         "report_to": "none", "dataloader_num_workers": 4, "remove_unused_columns": False, "save_strategy": "no",
                                         "logging_strategy": "steps", "logging_steps": 5, "optim": "adamw_torch_fused", "lr_scheduler_type": "cosine",
                                         "warmup_ratio": 0.03, "do_train": True, "push_to_hub": False, "fp16": False})},
     {"output": "o", "per_device_train_batch_size": 4, "learning_rate": 2e-5, "dtype": "bfloat16", "save_steps": 0, "logging_steps": 5,
      "optim": "adamw", "lr_scheduler_type": "cosine", "warmup_steps": 0.03}, [], [], []),
    ("arguments that cannot be", {"a.yaml": "output_dir: o\nseed: 7\nlr_scheduler_type: reduce_lr_on_plateau\noptim: galore_adamw\nmetric_for_best_model: f1\nlearning_rte: 1\n"},
     {"output": "o", "seed": 7}, [], ["lr_scheduler_type", "optim", "metric_for_best_model"], ["learning_rte"]),
    ("arguments and deepspeed", {"a.yaml": "output_dir: o\nper_device_train_batch_size: 2\ndeepspeed: ds.json\nbf16: true\n",
                                 "+ds.json": json.dumps({**AUTO_BATCH, "zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}})},
     {"output": "o", "per_device_train_batch_size": 2, "zero": 2, "dtype": "bfloat16"}, [], [], []),
    ("files that disagree", {"a.yaml": "output_dir: o\nper_device_train_batch_size: 2\nreport_to: none\n", "b.json": json.dumps({"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1})},
     {"output": "o", "per_device_train_batch_size": 2, "max_grad_norm": 1}, [], ["train_micro_batch_size_per_gpu"], []),
    ("8-bit moments", {"a.yaml": "output_dir: o\noptim: adamw_bnb_8bit\ntf32: true\n"}, {"output": "o", "optim": "adamw_8bit"}, [], [], []),
    ("fsdp by name", {"a.yaml": "output_dir: o\nfsdp: full_shard auto_wrap\nfsdp_config:\n  backward_prefetch: backward_pre\ngradient_checkpointing: true\n"},
     {"output": "o", "zero": 3, "recompute": "block"}, [], [], []),

    ("trl sft", {"a.yaml": "model_name_or_path: m\ndataset_name: d.jsonl\noutput_dir: o\nmax_length: 512\npacking: true\nassistant_only_loss: true\nuse_peft: true\n"
                           "lora_r: 8\nattn_implementation: sdpa\n"},
     {"model": "m", "data": ["d.jsonl"], "output": "o", "sequence_length": 512, "packing": "bestfit", "train_on": "assistant", "finetuning_type": "lora", "peft_rules": True,
      "lora_r": 8, "lora_alpha": 32, "lora_dropout": 0.05, "recompute": "block", "dtype": "bfloat16", "learning_rate": 2e-5}, [], [], []),
    ("trl, transformers 5 names", {"a.yaml": "model_name_or_path: m\ndataset_name: d.jsonl\noutput_dir: o\nlearning_rate: 1e-5\nbf16: false\nmax_length: 64\npacking: false\n"
                                             "activation_checkpointing: false\nactivation_checkpointing_kwargs: {every_n_layers: 2}\nlabel_smoothing_factor: 0.1\n"},
     {"model": "m", "data": ["d.jsonl"], "output": "o", "learning_rate": 1e-5, "sequence_length": 64, "packing": "none", "recompute": "none",
      "label_smoothing_factor": 0.1},
     ["activation_checkpointing_kwargs.every_n_layers"], [], []),
    ("trl full", {"a.yaml": "model_name_or_path: m\ndataset_name: d.jsonl\noutput_dir: o\nlearning_rate: 1e-5\nbf16: false\ngradient_checkpointing: false\n"
                            "completion_only_loss: false\nlora_r: 8\n"},
     {"model": "m", "data": ["d.jsonl"], "output": "o", "learning_rate": 1e-5, "recompute": "none", "train_on": "all", "sequence_length": 1024, "packing": "none"},
     [], [], []),

    ("llama-factory lora", {"a.yaml": LF % "lora" + "lora_rank: 8\nlora_target: all\n"},
     without(LF_OUT, finetuning_type="lora", peft_rules=True, lora_r=8, lora_target_modules=["all-linear"]), ["template"], [], []),
    ("llama-factory full", {"a.yaml": LF % "full" + "deepspeed: ds.json\npure_bf16: true\n", "+ds.json": json.dumps({**AUTO_BATCH, "zero_optimization": {"stage": 3}})},
     without(LF_OUT, finetuning_type="full", zero=3, master_dtype="bfloat16", moment_dtype="bfloat16"), ["template"], [], []),
    ("llama-factory text", {"a.yaml": "stage: pt\nfinetuning_type: full\nmodel_name_or_path: m\ndataset_dir: lfdata\ndataset: books\noutput_dir: o\ncutoff_len: 512\n"
                                      "disable_gradient_checkpointing: true\nval_size: 0.1\n"},
     {"finetuning_type": "full", "model": "m", "data": [{"path": "lfdata/books.jsonl", "columns": {"text": "text"}}], "output": "o", "sequence_length": 512, "recompute": "none", "eval_split": 0.1},
     [], [], []),
    ("llama-factory qlora, odd data", {"a.yaml": "stage: sft\nfinetuning_type: lora\nmodel_name_or_path: m\ndataset_dir: lfdata\ndataset: odd,hub,none\noutput_dir: o\n"
                                                 "quantization_bit: 4\nadapter_name_or_path: ad\n"},
     {"finetuning_type": "lora", "peft_rules": True, "model_base": "m", "model": "ad", "data": [{"path": "lfdata/odd.jsonl", "columns": {"instruction": "question", "output": "answer", "input": None, "history": None, "system": None}},
                                                       "org/hub"], "output": "o", "load_in_4bit": True, "bnb_4bit_use_double_quant": True,
      "sequence_length": 2048, "packing": "none", "recompute": "block"}, ["dataset"], ["dataset"], []),

    ("axolotl full", {"a.yaml": AX + "optimizer: adamw_torch_fused\n"}, without(AX_OUT, optim="adamw"), [], [], []),
    ("axolotl qlora", {"a.yaml": AX + "optimizer: paged_adamw_8bit\nadapter: qlora\nload_in_4bit: true\nlora_r: 32\nlora_alpha: 16\nlora_dropout: 0.05\nlora_target_linear: true\n"
                                     "special_tokens:\n  pad_token: <pad>\n"},
     without(AX_OUT, optim="adamw_8bit", offload_optimizer="cpu", offload_share="auto", finetuning_type="lora", peft_rules=True, load_in_4bit=True, lora_r=32, lora_alpha=16, lora_dropout=0.05, lora_target_modules=["all-linear"],
             bnb_4bit_use_double_quant=True),
     [], [], []),
    ("axolotl fsdp, 8 bits", {"a.yaml": AX + "adapter:\nlora_r:\nload_in_8bit: true\nfsdp_version: 2\nfsdp_config:\n  offload_params: false\n  reshard_after_forward: true\n"
                                            "plugins:\n  - axolotl.integrations.liger.LigerPlugin\nliger_rope: true\nchat_template: gemma3\nsequence_lenght: 5\n"},
     without(AX_OUT, zero=3), ["chat_template"], ["load_in_8bit"], ["sequence_lenght"]),
    ("axolotl text", {"a.yaml": "base_model: m\npretraining_dataset:\n  - path: json\n    data_files: [a.jsonl, b.jsonl]\n    type: pretrain\n    text_column: body\n"
                                "micro_batch_size: 1\nmax_steps: 10\nlearning_rate: 1e-4\noutput_dir: o\nlr_scheduler: constant\noptimizer: lion_pytorch\nbf16: true\n"},
     {"model": "m", "data": [{"path": p, "columns": {"text": "body"}} for p in ("a.jsonl", "b.jsonl")], "per_device_train_batch_size": 1, "per_device_eval_batch_size": 1, "max_steps": 10, "learning_rate": 1e-4, "output": "o",
      "lr_scheduler_type": "constant", "optim": "lion", "dtype": "bfloat16", "sequence_length": 512, "save_strategy": "epoch", "save_total_limit": 4, "warmup_steps": 0.03},
     [], [], []),

    ("axolotl names", {"a.yaml": AX.replace("    type: chat_template\n", """    type: chat_template
    field_messages: dialog
    message_property_mappings:
      role: speaker
      content: utterance
      reasoning_content: thought
    roles:
      user: [client]
      assistant: [bot, gpt]
    roles_to_train: [assistant, tool]
    message_field_training: learn
  - path: b.jsonl
    type: chat_template
    field_messages: conversations
    message_property_mappings: {role: from, content: value}
    roles_to_train: ["gpt"]
  - path: c.jsonl
    type: completion
    field: body
  - path: d.jsonl
    type: input_output
  - path: e.jsonl
    type:
  - path: f.jsonl
    type:
      field_instruction: q
      field_output: a
      format: "[INST] {instruction} [/INST]"
      no_input_format: "[INST] {instruction} [/INST]"
test_datasets:
  - path: g.jsonl
    type: alpaca_w_system.load_open_orca
""").replace("val_set_size: 0.05\n", "")},
     without(AX_OUT, "eval_split", data=[
         {"path": "a.jsonl", "columns": {"messages": "dialog"}, "message": {"role": "speaker", "content": "utterance", "reasoning_content": "thought", "train": "learn"},
          "roles": {"user": ["client"], "assistant": ["bot", "gpt"]}, "train_roles": ["assistant", "tool"]},
         "b.jsonl", {"path": "c.jsonl", "columns": {"text": "body"}}, {"path": "d.jsonl", "format": "input_output"}, "e.jsonl",
         {"path": "f.jsonl", "columns": {"instruction": "q", "output": "a"}, "prompt_format": "[INST] {instruction} [/INST]",
          "no_input_format": "[INST] {instruction} [/INST]", "format": "alpaca", "system_format": "{system}"}],
         eval_data=[{"path": "g.jsonl", "format": "alpaca", "columns": {"instruction": "question", "output": "response", "system": "system_prompt", "input": None},
                     "prompt_format": "### Human:\n{instruction}\n### Assistant:\n", "system_format": "### System:\n{system}\n"}]), [], [], []),
    ("axolotl prompts", {"a.yaml": AX.replace("type: chat_template", "type: alpaca:chat")},
     without(AX_OUT, data=[{"path": "a.jsonl", "format": "alpaca",
                            "prompt_format": "SYSTEM: Below is an instruction that describes a task, paired with an input that provides further context. Write a response that "
                                             "appropriately completes the request.\nUSER: {instruction}\n{input}\nASSISTANT:",
                            "no_input_format": "SYSTEM: Below is an instruction that describes a task. Write a response that appropriately completes the request.\n"
                                               "USER: {instruction}\nASSISTANT:"}]), [], [], []),
    ("axolotl splits", {"a.yaml": AX.replace("    type: chat_template\n", "    type: chat_template\n    split: train[:1%]\n")}, without(AX_OUT, data=["a.jsonl#train[:1%]"]), [], [], []),
    ("axolotl types that cannot be", {"a.yaml": AX.replace("type: chat_template", "type: explainchoice")}, AX_OUT, [], ["datasets[0].type"], []),
    ("llama-factory names", {"a.yaml": "stage: sft\nfinetuning_type: full\nmodel_name_or_path: m\ndataset_dir: lfdata\ndataset: tagged,plain,few\noutput_dir: o\n"},
     {"finetuning_type": "full", "model": "m", "output": "o", "sequence_length": 2048, "packing": "none", "recompute": "block",
      "data": [{"path": "lfdata/t.jsonl", "roles": {"user": "client", "assistant": "bot"}, "columns": {"messages": "dialog", "tools": "functions"},
                "message": {"role": "who", "content": "what"}}, "lfdata/p.jsonl", "lfdata/f.jsonl#[:10]"]}, ["dataset"], [], []),
    ("llama-factory pairs and labels", {"a.yaml": "stage: dpo\nfinetuning_type: full\nmodel_name_or_path: m\ndataset_dir: lfdata\ndataset: pairs,labels\noutput_dir: o\n"},
     {"finetuning_type": "full", "model": "m", "output": "o", "sequence_length": 2048, "recompute": "block", "task": "dpo",
      "data": [{"path": "lfdata/r.json", "columns": {"messages": "conv", "chosen": "good", "rejected": "bad"}, "message": {"role": "from", "content": "value"}},
               {"path": "lfdata/k.json", "columns": {"label": "liked"}}]}, [], [], []),

    ("axolotl variables", {"a.yaml": AX.replace("2048", "500_000") + "chat_template_kwargs:\n  enable_thinking: False\n  reasoning_effort: high\n  budget: 128\n"
                                     "default_system_message: Be brief.\ndevice: cuda:0\n"},
     without(AX_OUT, sequence_length=500000, chat_template_kwargs={"enable_thinking": False, "reasoning_effort": "high", "budget": 128},
             data=[{"path": "a.jsonl", "system": "Be brief."}]), [], [], []),
    ("axolotl 8 bits", {"a.yaml": AX + "adapter: lora\nload_in_8bit: true\nlora_r: 64\nlora_target_linear: true\nlora_target_modules: [q_proj, v_proj]\n"
                                  "gradient_checkpointing_kwargs:\n  use_reentrant: false\nresize_token_embeddings_to_32x: true\nunfrozen_parameters:\n  - ^model.language_model.*\n"},
     without(AX_OUT, finetuning_type="lora", peft_rules=True, base_dtype="fp8", lora_r=64, lora_target_modules=["all-linear"]), ["load_in_8bit", "resize_token_embeddings_to_32x"], [], []),
    ("axolotl defaults", {"a.yaml": "base_model: m\ndatasets:\n  - path: a.jsonl\n    type: chat_template\nadapter: qlora\nload_in_4bit: true\nreinit_weights: true\n"
                                    "micro_batch_size: 1\n"},
     {"model": "m", "data": ["a.jsonl"], "sequence_length": 512, "packing": "none", "per_device_train_batch_size": 1, "num_train_epochs": 1, "lr_scheduler_type": "cosine",
      "finetuning_type": "lora", "peft_rules": True, "load_in_4bit": True, "bnb_4bit_use_double_quant": True, "long_documents": "drop", "save_strategy": "epoch", "save_total_limit": 4,
      "warmup_steps": 0.03, "from_scratch": True, "per_device_eval_batch_size": 1, "dtype": "bfloat16"}, [], [], []),
    ("axolotl, more defaults", {"a.yaml": "base_model: m\ndatasets:\n  - path: a.jsonl\n    type: chat_template\nnum_epochs: 1\nsaves_per_epoch: 1\nevals_per_epoch: 1\n"},
     {"model": "m", "data": ["a.jsonl"], "sequence_length": 512, "packing": "none", "per_device_train_batch_size": 1, "per_device_eval_batch_size": 1, "num_train_epochs": 1,
      "dtype": "bfloat16", "lr_scheduler_type": "cosine", "long_documents": "drop", "save_strategy": "epoch", "save_total_limit": 4, "warmup_steps": 0.03}, [], [], []),
    ("axolotl, no precision", {"a.yaml": AX.replace("bf16: auto", "bf16:")}, without(AX_OUT, "dtype"), [], [], []),
    ("axolotl simpo", {"a.yaml": AX + "rl: simpo\nsimpo_gamma: 0.7\n"}, without(AX_OUT, task="simpo", simpo_gamma=0.7, beta=0.1, rpo_alpha=1), [], [], []),
    ("axolotl simpo, all of it", {"a.yaml": AX + "rl: simpo\nsimpo_gamma: 0.7\nrl_beta: 2.5\ncpo_alpha: 0.2\n"},
     without(AX_OUT, task="simpo", simpo_gamma=0.7, beta=2.5, rpo_alpha=0.2), [], [], []),
    ("weights of axolotl's pairs", {"a.yaml": AX + "rl: dpo\ndpo_norm_loss: true\ndpo_use_weighting: true\ndpo_ld_alpha: 0.3\ncurriculum_sampling: true\n"},
     without(AX_OUT, task="dpo", loss_type="sigmoid_norm", use_weighting=True, ld_alpha=0.3, train_sampling_strategy="sequential"), [], [], []),
    ("axolotl dpo", {"a.yaml": AX + "rl: dpo\nrpo_alpha: 0.3\ntrl:\n  beta: 0.3\n"}, without(AX_OUT, task="dpo", rpo_alpha=0.3, beta=0.3), [], [], []),
    ("axolotl says otherwise", {"a.yaml": AX.replace("chat_template", "completion") + "adapter: qlora\nload_in_4bit: true\nbnb_config_kwargs:\n  bnb_4bit_use_double_quant: false\n"
                                          "save_total_limit: 2\nsave_strategy: \"no\"\n"},
     without(AX_OUT, "long_documents", "save_strategy", finetuning_type="lora", peft_rules=True, load_in_4bit=True, save_total_limit=2, save_steps=0), [], [], []),
    ("trl pairs", {"a.yaml": "output_dir: o\nmodel_name_or_path: m\ndataset_name: d\nbeta: 0.2\neval_delay: 10\n"},
     {"output": "o", "model": "m", "data": ["d"], "task": "dpo", "beta": 0.2, "eval_delay": 10, "learning_rate": 1e-6, "sequence_length": 1024, "packing": "none",
      "recompute": "block", "dtype": "bfloat16"}, ["beta", "beta"], [], []),
    ("trl simpo", {"a.yaml": "output_dir: o\nmodel_name_or_path: m\ndataset_name: d\nloss_type: simpo\nsimpo_gamma: 0.7\n"},
     {"output": "o", "model": "m", "data": ["d"], "task": "simpo", "simpo_gamma": 0.7, "beta": 0.1, "rpo_alpha": 1, "learning_rate": 1e-6, "sequence_length": 1024,
      "packing": "none", "recompute": "block", "dtype": "bfloat16"}, [], [], []),
    ("trl of old", {"a.yaml": "output_dir: o\nmodel_name_or_path: m\ndataset_name: d\nuse_liger: true\nlabel_pad_token_id: -100\nis_encoder_decoder: true\nmax_target_length: 64\n"
                              "model_adapter_name: x\nsplit_batches: false\ndo_eval: true\n"},
     {"output": "o", "model": "m", "data": ["d"], "learning_rate": 2e-5, "sequence_length": 1024, "packing": "none", "recompute": "block", "dtype": "bfloat16"},
     ["max_target_length"], ["is_encoder_decoder"], []),
    ("trl cpo", {"a.yaml": "output_dir: o\nmodel_name_or_path: m\ndataset_name: d\nbeta: 0.2\ncpo_alpha: 0.5\n"},
     {"output": "o", "model": "m", "data": ["d"], "task": "cpo", "beta": 0.2, "rpo_alpha": 0.5, "learning_rate": 1e-6, "sequence_length": 1024,
      "packing": "none", "recompute": "block", "dtype": "bfloat16"}, [], [], []),
    ("llama-factory simpo", {"a.yaml": "stage: dpo\npref_loss: simpo\nfinetuning_type: lora\nmodel_name_or_path: m\noutput_dir: o\ncutoff_len: 64\nplot_loss: true\n"},
     {"finetuning_type": "lora", "peft_rules": True, "lora_target_modules": ["all-linear"], "model": "m", "output": "o", "sequence_length": 64, "recompute": "block", "task": "simpo", "beta": 0.1}, [], [], []),
    ("a scheduler of DeepSpeed", {"a.yaml": "output_dir: o\nmodel_name_or_path: m\ndeepspeed: ds.json\nlr_scheduler_type: cosine\nwarmup_steps: 5\n",
                                 "+ds.json": json.dumps({"scheduler": {"type": "WarmupDecayLR", "params": {
                                     "total_num_steps": "auto", "warmup_min_lr": 0, "warmup_max_lr": "auto", "warmup_num_steps": "auto", "warmup_type": "linear"}}})},
     {"output": "o", "model": "m", "lr_scheduler_type": "linear", "warmup_steps": 5, "max_grad_norm": 0}, ["lr_scheduler_type"], [], []),
    ("a scheduler of DeepSpeed, read last", {"a.json": json.dumps({"output_dir": "o", "model_name_or_path": "m", "lr_scheduler_type": "cosine"}),
                                            "b.json": json.dumps({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5, "warmup_type": "linear"}},
                                                                  "zero_optimization": {"stage": 1}})},
     {"output": "o", "model": "m", "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 5, "zero": 1, "max_grad_norm": 0}, ["lr_scheduler_type"], [], []),
    ("losses with weights", {"a.yaml": "model_name_or_path: m\ndataset_name: d\noutput_dir: o\nbeta: 0.2\nloss_type: [sigmoid, bco_pair, sft]\nloss_weights: [0.8, 0.2, 1.0]\n"},
     {"output": "o", "model": "m", "data": ["d"], "task": "dpo", "beta": 0.2, "loss_type": "sigmoid:0.8,bco_pair:0.2,sft:1.0", "learning_rate": 1e-6,
      "sequence_length": 1024, "packing": "none", "recompute": "block", "dtype": "bfloat16"}, [], [], []),
    ("losses without weights", {"a.yaml": "model_name_or_path: m\ndataset_name: d\noutput_dir: o\nbeta: 0.2\nloss_type: [ipo, sft]\nlabel_smoothing: 0\n"},
     {"output": "o", "model": "m", "data": ["d"], "task": "dpo", "beta": 0.2, "label_smoothing": 0, "loss_type": "ipo,sft", "learning_rate": 1e-6,
      "sequence_length": 1024, "packing": "none", "recompute": "block", "dtype": "bfloat16"}, [], [], []),
    ("losses and another number of weights", {"a.yaml": "model_name_or_path: m\ndataset_name: d\noutput_dir: o\nbeta: 0.2\nloss_type: [ipo, sft]\nloss_weights: [1]\n"},
     {"output": "o", "model": "m", "data": ["d"], "task": "dpo", "beta": 0.2, "learning_rate": 1e-6,
      "sequence_length": 1024, "packing": "none", "recompute": "block", "dtype": "bfloat16"}, [], ["loss_type"], []),
    ("losses of axolotl", {"a.yaml": "base_model: m\nsequence_len: 64\nrl: dpo\ndpo_loss_type: [ipo, sft]\ndpo_loss_weights: [1, 0.5]\noutput_dir: o\nsave_steps: 5\nsave_total_limit: 4\nwarmup_steps: 1\n"},
     {"output": "o", "model": "m", "task": "dpo", "loss_type": "ipo:1,sft:0.5", "sequence_length": 64, "per_device_train_batch_size": 1, "per_device_eval_batch_size": 1, "dtype": "bfloat16", "save_steps": 5, "save_total_limit": 4, "warmup_steps": 1,
      "packing": "none", "num_train_epochs": 1, "lr_scheduler_type": "cosine"}, [], [], []),
    ("llama-factory of old", {"a.yaml": "stage: dpo\nfinetuning_type: full\nmodel_name_or_path: m\ndpo_beta: 0.3\ndpo_ftx: 0.5\ndpo_loss: hinge\nattn: fa2\nreserved_label_len: 1\n"
                                        "max_source_length: 512\noutput_dir: o\n"},
     {"finetuning_type": "full", "model": "m", "output": "o", "sequence_length": 2048, "recompute": "block", "task": "dpo", "beta": 0.3, "rpo_alpha": 0.5, "loss_type": "hinge"},
     ["max_source_length"], [], []),
    ("llama-factory lists", {"+list.yaml": "one:\n  path: one.json\n  source: local\n  converter: alpaca\ntwo:\n  path: two.jsonl\n  converter: sharegpt\n  size: 500\n",
                             "a.yaml": "model: m\nmodel_class: llm\ntrain_dataset: list.yaml\nmicro_batch_size: 1\ncutoff_len: 2048\noutput_dir: o\n"},
     {"model": "m", "data": ["one.json", "two.jsonl#[:500]"], "per_device_train_batch_size": 1, "sequence_length": 2048, "output": "o"}, ["train_dataset"], [], []),
    ("a dtype", {"a.yaml": "output_dir: o\nmodel_name_or_path: m\ndtype: bfloat16\nlogging_first_step: true\n"}, {"output": "o", "model": "m", "dtype": "bfloat16"}, [], [], []),
    ("a dtype and bf16", {"a.yaml": "output_dir: o\nmodel_name_or_path: m\ntorch_dtype: float32\nbf16: true\nlogging_first_step: true\n"},
     {"output": "o", "model": "m", "dtype": "bfloat16"}, [], [], []),
    ("deepspeed below llama-factory", {"+ds2.json": {"zero_optimization": {"stage": 2}, "steps_per_print": 2000},
                                       "a.yaml": "stage: sft\nfinetuning_type: full\nmodel_name_or_path: m\noutput_dir: o\nlogging_steps: 10\ndeepspeed: ds2.json\nmax_length: 64\n"},
     {"finetuning_type": "full", "model": "m", "output": "o", "logging_steps": 10, "sequence_length": 2048, "packing": "none", "recompute": "block", "zero": 2,
      "max_grad_norm": 0}, [], [], []),

    ("torchtune columns", {"a.yaml": (TUNE % ("", "fp32")).replace("  packed: False\n", "  packed: False\n  column_map: {input: q, output: a}\n  new_system_prompt: Be brief.\n")},
     without(TUNE_OUT, dtype="fp32", data=[{"path": "a.jsonl", "format": "alpaca", "columns": {"instruction": "q", "output": "a", "input": None}, "system": "Be brief."}]),
     ["dataset.new_system_prompt"], [], []),
    ("torchtune chats", {"a.yaml": (TUNE % ("", "fp32")).replace("instruct_dataset", "chat_dataset").replace(
        "  packed: False\n", "  packed: False\n  conversation_column: dialog\n  conversation_style: sharegpt\n")},
     without(TUNE_OUT, dtype="fp32", data=[{"path": "a.jsonl", "format": "sharegpt", "columns": {"messages": "dialog"}}]), [], [], []),
    ("torchtune full", {"a.yaml": TUNE % ("", "bf16")}, without(TUNE_OUT, dtype="bfloat16", master_dtype="bfloat16", moment_dtype="bfloat16"), [], [], []),
    ("torchtune lora", {"a.yaml": (TUNE % ("lora_", "fp32")).replace("checkpointer:", "  lora_attn_modules: ['q_proj', 'output_proj']\n  apply_lora_to_mlp: True\n"
                                                                     "  lora_rank: 8\n  lora_alpha: 16\ncheckpointer:", 1) +
                        "lr_scheduler:\n  _component_: torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup\n  num_warmup_steps: 100\n"},
     without(TUNE_OUT, dtype="fp32", finetuning_type="lora", peft_rules=True, lora_r=8, lora_alpha=16, lora_target_modules=["q_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
             lr_scheduler_type="cosine", warmup_steps=100), [], [], []),
    ("torchtune originals", {"a.yaml": (TUNE % ("", "fp32")).replace("FullModelHFCheckpointer", "FullModelMetaCheckpointer").replace("dir: /tmp/m", "dir: /tmp/m/original/")
                             .replace("  source: json\n  data_files: a.jsonl\n", "").replace("instruct_dataset", "alpaca_dataset").replace("max_seq_len: 1024", "max_seq_len: null")},
     without(TUNE_OUT, "sequence_length", dtype="fp32", data=["tatsu-lab/alpaca"], train_on="all"), ["checkpointer.checkpoint_dir", "dataset._component_"], [], []),
    ("axolotl without system turns", {"c.yml": AX.replace("    type: chat_template\n", "    type: chat_template\n    drop_system_message: true\n    field_messages: conversations\n"
                                                                   "    message_property_mappings:\n      role: from\n      content: value\n")},
     without(AX_OUT, data=[{"path": "a.jsonl", "columns": {"messages": "conversations"}, "message": {"role": "from", "content": "value"}, "roles": {"system": None}}]), [], [], []),
    ("axolotl lora of a tied head", {"c.yml": AX + "adapter: lora\nlora_r: 8\nlora_modules_to_save:\n  - embed_tokens\n  - lm_head\n"
                                                   "deepspeed: deepspeed_configs/zero3_bf16.json\n"},
     without(AX_OUT, zero=3, finetuning_type="lora", peft_rules=True, lora_r=8, lora_modules_to_save=["embed_tokens", "lm_head"], untie=True), ["deepspeed"], [], []),
    ("llama-factory lists of older files, pairs and rings", {"+list.yaml": "one:\n  file_name: one.json\n  dataset_dir: lfdata\n  converter: alpaca\n  num_samples: 20\n"
                                                             "two:\n  path: two.jsonl\n  converter: pair\n",
                                                             "a.yaml": "model: m\nmodel_class: llm\ntrain_dataset: list.yaml\noutput_dir: o\ncutoff_len: 64\n"
                                                             "dist_config:\n  name: fsdp2\n  cp_mode: ring_zigzag\n  cp_size: 2\nmtp_config:\n  name: mtp\n"},
     {"model": "m", "data": ["lfdata/one.json#[:20]", "two.jsonl"], "task": "dpo", "sequence_length": 64, "output": "o", "zero": 3, "cp": 2, "cp_mode": "ring"},
     ["train_dataset"], ["mtp_config.name"], []),
    ("llama-factory one file", {"+one.jsonl": "", "a.yaml": "model: m\nmodel_class: llm\ntrain_dataset: one.jsonl\noutput_dir: o\n"},
     {"model": "m", "data": ["one.jsonl"], "output": "o"}, [], [], []),
    ("llamafactory long rows", {"a.yaml": (LF % "full") + "rope_scaling: yarn\nsequence_parallel_size: 4\nsequence_parallel_mode: ulysses\n"},
     without(LF_OUT, finetuning_type="full", cp=4, cp_mode="ulysses"), ["rope_scaling", "template"], [], []),
    ("llamafactory lora of a tied head", {"a.yaml": (LF % "lora") + "additional_target: embed_tokens,lm_head\ndeepspeed: examples/deepspeed/ds_z2_config.json\n"},
     without(LF_OUT, zero=2, finetuning_type="lora", peft_rules=True, lora_target_modules=["all-linear"], lora_modules_to_save=["embed_tokens,lm_head"], untie=True), ["deepspeed", "template"], [], []),
    ("trl lora of a tied head", {"a.yaml": "model_name_or_path: m\ndataset_name: d\nuse_peft: true\nlora_modules_to_save: lm_head\nlearning_rate: 1e-4\n"},
     {"model": "m", "data": ["d"], "finetuning_type": "lora", "peft_rules": True, "lora_modules_to_save": ["lm_head"], "untie": True, "learning_rate": 1e-4, "recompute": "block", "dtype": "bfloat16",
      "sequence_length": 1024, "packing": "none", "lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.05}, [], [], []),
    ("torchtune with Meta's checkpointer on another directory", {"a.yaml": (TUNE % ("", "fp32")).replace("FullModelHFCheckpointer", "FullModelMetaCheckpointer")},
     without(TUNE_OUT, dtype="fp32"), ["checkpointer._component_"], [], []),
    ("torchtune pairs", {"a.yaml": (TUNE % ("", "fp32")).replace("modules.loss.LinearCrossEntropyLoss", "rlhf.loss.DPOLoss\n  beta: 0.05").replace("instruct_dataset", "preference_dataset") +
                         "ref_checkpointer:\n  _component_: torchtune.training.FullModelHFCheckpointer\n  checkpoint_dir: /tmp/m\n  model_type: LLAMA3\n"},
     without(TUNE_OUT, dtype="fp32", task="dpo", beta=0.05, data=["a.jsonl"]), [], [], []),
    ("torchtune pairs with columns", {"a.yaml": (TUNE % ("", "fp32")).replace("modules.loss.LinearCrossEntropyLoss", "rlhf.loss.DPOLoss\n  loss_type: ipo").replace(
        "instruct_dataset", "preference_dataset").replace("  packed: False\n", "  packed: False\n  column_map: {chosen: good, rejected: bad}\n")},
     without(TUNE_OUT, dtype="fp32", task="dpo", loss_type="ipo", data=[{"path": "a.jsonl", "columns": {"chosen": "good", "rejected": "bad"}}]), [], [], []),
    ("torchtune answers", {"a.yaml": (TUNE % ("", "fp32")).replace("modules.loss.LinearCrossEntropyLoss", "rlhf.loss.DPOLoss").replace("instruct_dataset", "stack_exchange_paired_dataset")},
     without(TUNE_OUT, dtype="fp32", task="dpo", data=[{"path": "a.jsonl", "columns": {"instruction": "question", "chosen": "response_j", "rejected": "response_k"}}]), [], [], []),
    ("torchtune answers of the hub", {"a.yaml": (TUNE % ("", "fp32")).replace("modules.loss.LinearCrossEntropyLoss", "rlhf.loss.DPOLoss").replace(
        "instruct_dataset", "stack_exchanged_paired_dataset").replace("  source: json\n  data_files: a.jsonl\n", "")},
     without(TUNE_OUT, dtype="fp32", task="dpo",
             data=[{"path": "lvwerra/stack-exchange-paired", "columns": {"instruction": "question", "chosen": "response_j", "rejected": "response_k"}}]), ["dataset._component_"], [], []),
    ("torchtune lora of joined matrices", {"a.yaml": (TUNE % ("", "fp32")).replace("llama3_2.llama3_2_1b", "phi3.lora_phi3_mini").replace(
        "checkpointer:", "  lora_attn_modules: ['q_proj', 'k_proj', 'v_proj', 'output_proj']\n  apply_lora_to_mlp: True\ncheckpointer:", 1)},
     without(TUNE_OUT, dtype="fp32", finetuning_type="lora", peft_rules=True, lora_target_modules=["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]),
     ["model.lora_attn_modules", "model.lora_attn_modules", "model.apply_lora_to_mlp", "model.apply_lora_to_mlp"], [], []),
    ("torchtune pairs beside another model", {"a.yaml": (TUNE % ("", "fp32")) + "ref_checkpointer:\n  checkpoint_dir: /tmp/r\n"},
     without(TUNE_OUT, dtype="fp32", ref_model="/tmp/r"), [], [], []),
    ("torchtune held out", {"a.yaml": "dataset:\n  _component_: torchtune.datasets.chat_dataset\n  source: c.jsonl\n  split: train[:95%]\n  packed: true\ndataset_val:\n"
                                      "  _component_: torchtune.datasets.chat_dataset\n  split: train[95%:]\nrun_val_every_n_steps: 5\nkd_ratio: 0.5\n"},
     {"data": ["c.jsonl"], "eval_split": 0.05, "packing": "bestfit", "eval_steps": 5}, [], ["kd_ratio"], []),
    ("trl mixture", {"a.yaml": "model_name_or_path: m\noutput_dir: o\nlearning_rate: 1e-5\nassistant_only_loss: true\naverage_tokens_across_devices: true\n_note: ours\n"
                               "dataset_mixture:\n  datasets:\n    - id: org/talk-2.5\n      config: SFT\n      split: everyday\n      columns: [messages, kwargs]\n"
                               "      weight: 0.5\n    - path: json\n      data_files: [a.jsonl, b.jsonl]\n  seed: 0\n  test_split_size: 0.1\n"},
     {"model": "m", "output": "o", "learning_rate": 1e-5, "train_on": "assistant", "data": ["org/talk-2.5/SFT#everyday[:50%]", "a.jsonl", "b.jsonl"], "eval_split": 0.1,
      "recompute": "block", "dtype": "bfloat16", "sequence_length": 1024, "packing": "none"}, ["dataset_mixture.datasets[0].id"], [], []),
    ("trl mixer", {"a.yaml": "model_name_or_path: m\noutput_dir: o\nbeta: 0.1\nloss_type: ipo\neval_strategy: steps\neval_steps: 10\nlearning_rate: 1e-5\n"
                             "dataset_mixer:\n  org/a: 1.0\n  ./b: 0.25\ndataset_splits: [train_x, test_x]\ndataset_configs: [en, default]\npreprocessing_num_workers: 4\n"},
     {"model": "m", "output": "o", "task": "dpo", "beta": 0.1, "loss_type": "ipo", "eval_steps": 10, "learning_rate": 1e-5,
      "data": ["org/a/en#train_x", "./b#train_x[:25%]"], "eval_data": ["org/a/en#test_x", "./b#test_x"],
      "recompute": "block", "dtype": "bfloat16", "sequence_length": 1024, "packing": "none"}, ["dataset_mixer.org/a", "dataset_mixer.org/a"], [], []),
    ("trl splits", {"a.yaml": "model_name_or_path: m\noutput_dir: o\nlearning_rate: 1e-5\nassistant_only_loss: true\ndataset_name: org/chat\ndataset_config: en\n"
                              "dataset_train_split: train_sft\ndataset_test_split: test_sft\neval_strategy: epoch\n"},
     {"model": "m", "output": "o", "learning_rate": 1e-5, "train_on": "assistant", "data": ["org/chat/en#train_sft"], "eval_data": ["org/chat/en#test_sft"],
      "eval_strategy": "epoch", "recompute": "block", "dtype": "bfloat16", "sequence_length": 1024, "packing": "none"}, ["dataset_name", "dataset_name"], [], []),
    ("a template as text", {"a.yaml": "model_name_or_path: m\noutput_dir: o\nrun_name: 007\nchat_template: " + json.dumps(JINJA) + "\n"},
     {"model": "m", "output": "o", "run_name": "007", "chat_template": JINJA}, [], [], []),
    ("axolotl, a template as text", {"a.yaml": AX + "chat_template: jinja\nchat_template_jinja: " + json.dumps(JINJA) + "\n"}, without(AX_OUT, chat_template=JINJA), [], [], []),
    ("axolotl parts", {"a.yaml": AX.replace("a.jsonl\n", "org/math\n    name: main\n    split: train+test[:10%]\n    weight: 1.0\n  - path: org/more\n    weight: 0.5\n    name: default\n")},
     without(AX_OUT, data=["org/math/main#train", "org/math/main#test[:10%]", "org/more#train[:50%]"]),
     ["datasets[0].path", "datasets[0].path", "datasets[1].path", "datasets[1].weight"], [], []),
    ("axolotl, names that learn", {"a.yaml": AX + "use_dft: true\ncontext_parallel:\n  size: 2\nunfrozen_parameters:\n  - ^lm_head.weight$\n  - model.layers.4[4-9]+.mlp\n"
                                                  "  - .*layernorm\n  - model.layers.(1|2).mlp\n"},
     without(AX_OUT, use_dft_loss=True, cp=2, trainable=["lm_head.weight", "model.layers.4[4-9]*.mlp*", "*layernorm*"]), [], ["unfrozen_parameters"], []),
    ("torchtune parts", {"a.yaml": (TUNE % ("", "fp32")).replace("  source: json\n  data_files: a.jsonl\n", "  source: org/math\n  name: main\n  split: train[:5%]\n")},
     without(TUNE_OUT, dtype="fp32", data=[{"path": "org/math/main#train[:5%]", "format": "alpaca", "columns": {"instruction": "input", "input": None}}]), ["dataset.source"], [], []),
]


def run(trireme, files):
    for name, text in files.items():
        with open(name.lstrip("+"), "w") as f:
            f.write(text if isinstance(text, str) else json.dumps(text, indent=1))
    names = [n for n in files if n[0] != "+"]
    p = subprocess.run([trireme, "config", "import", *names, "--json"], capture_output=True, text=True)
    return p.returncode, json.loads(p.stdout.splitlines()[-1]) if p.stdout else p.stderr


def check_dumps(trireme):
    """What to_dict() of TrainingArguments and its kin gives is a file like another: all of it is taken."""
    bad = 0
    for name, fields in json.loads((pathlib.Path(__file__).parent / "dumps.json").read_text()).items():
        code, got = run(trireme, {name + ".json": fields})
        wrong = got if isinstance(got, str) else [x["key"] for k in ("cannot", "unknown") for x in got[k]]
        if code != 0 or wrong:
            print(f"every field of {name}: exit {code}: {wrong}")
            bad += 1
    return bad


def main():
    import os
    os.makedirs("lfdata", exist_ok=True)
    with open("lfdata/dataset_info.json", "w") as f:
        json.dump(INFO, f)
    bad = check_dumps(sys.argv[1])
    for name, files, options, differs, cannot, unknown in CASES:
        code, got = run(sys.argv[1], files)
        if isinstance(got, str):
            print(f"{name}: exit {code}: {got}")
            bad += 1
            continue
        want = {"config": options, "differs": sorted(differs), "cannot": sorted(cannot), "unknown": sorted(unknown), "code": 2 if cannot or unknown else 0}
        have = {"config": got["config"], "code": code}
        have.update({k: sorted(x["key"] for x in got[k] if x["line"]) for k in ("differs", "cannot", "unknown")})
        for k in want:
            if have[k] != want[k]:
                a, b = want[k], have[k]
                if k == "config":
                    a, b = ({x: v for x, v in a.items() if b.get(x) != v}, {x: v for x, v in b.items() if a.get(x) != v})
                print(f"{name}: {k}: want {a}, have {b}")
                bad += 1
    print(f"{len(CASES)} translations, {bad} wrong")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
