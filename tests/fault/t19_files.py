"""T19, see t19_files.sh: hostile files of every format that is read, through the verbs that read them."""
import gzip, json, os, pty, queue, random, re, resource, select, shutil, signal, socket, struct, subprocess, sys, threading, time
import t19_mutate as m

TRIREME, GOLDEN, PAGE = os.environ["TRIREME"], os.environ["GOLDEN"], os.environ["LIMITS"]
n_files, seed, planted = int(sys.argv[1]), int(sys.argv[2]), os.environ.get("TR_PLANT")
only = int(sys.argv[3]) if len(sys.argv) > 3 else None  # one file again
is_sanitized = bool(os.environ.get("TR_SANITIZED", ""))
CODES = {0, 1, 2, 78}   # done, no, bad input, numbers that are not finite; anything else is a find
DAMAGED = {70}          # a checkpoint of ours that does not match its hashes: the machine's fault
OWN = re.compile(rb"\x1b\[(0|36|1;34|0;32|0;2)m")    # the colours of our own views, see src/base/show.c
HANG = 300
SMALL = ["--threads", "1", "--sequence_length", "32"]


def limits():
    """docs/formats/limits.md: format -> (times its size, MiB besides, CPU seconds besides, microseconds a byte)."""
    rows = [[c.strip() for c in line.strip().strip("|").split("|")] for line in open(PAGE) if re.match(r"\| `?\w", line)]
    return {r[0].strip("`"): tuple(float(c) for c in r[2:6]) for r in rows if re.match(r"[\d.]+$", r[2])}


# ---- good files ----

def write_safetensors(path, tensors):
    head, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + b"".join(d for _, _, d in tensors.values()))


def read_safetensors(path):
    b = open(path, "rb").read()
    n = struct.unpack("<Q", b[:8])[0]
    return {k: (t["dtype"], t["shape"], b[8 + n:][slice(*t["data_offsets"])]) for k, t in json.loads(b[8:8 + n]).items() if k != "__metadata__"}


def run_good(*words):
    subprocess.run([TRIREME, *words], check=True, stdout=subprocess.DEVNULL)


def make_good():
    """The directories that are damaged, in ./good: model, chat model, shards with an index, adapter, quantised, run, data."""
    os.makedirs("good")
    os.chdir("good")
    shutil.copytree("../model", "model")
    shutil.copy("../train.jsonl", "train.jsonl")
    data = open("train.jsonl", "rb").read()
    open("plain.txt", "wb").write(b"three banks of oars " * 100)
    open("chat.jsonl", "w").write("".join(json.dumps({"messages": [{"role": "user", "content": f"oars {i}?"}, {"role": "assistant", "content": "170."}]}) + "\n" for i in range(8)))
    open("pairs.jsonl", "w").write("".join(json.dumps({"prompt": f"oars {i}", "completion": "170"}) + "\n" for i in range(8)))
    open("alpaca.jsonl", "w").write("".join(json.dumps({"instruction": f"oars {i}", "input": "", "output": "170"}) + "\n" for i in range(8)))
    open("ids.jsonl", "w").write("".join(json.dumps({"input_ids": [i, 2, 3], "labels": [-100, 2, 3]}) + "\n" for i in range(8)))
    open("sharegpt.jsonl", "w").write("".join(json.dumps({"conversations": [{"from": "human", "value": f"oars {i}?"}, {"from": "gpt", "value": "170."}]}) + "\n" for i in range(8)))
    open("train.jsonl.gz", "wb").write(gzip.compress(data, mtime=0))
    subprocess.run(["zstd", "-q", "-k", "train.jsonl"], check=True)
    tables = f"{GOLDEN}/../table/golden"
    os.makedirs("tables")
    for name in sorted(os.listdir(tables)):
        if name.endswith((".parquet", ".arrow", ".csv", ".tsv", ".json")):
            shutil.copy(f"{tables}/{name}", f"tables/{name}")
    shutil.copytree("model", "talk")
    shutil.copy(f"{GOLDEN}/chat/templates/qwen3.jinja", "talk/chat_template.jinja")
    shutil.copytree("model", "told")
    config = json.load(open("told/tokenizer_config.json"))
    config["chat_template"] = open(f"{GOLDEN}/chat/templates/llama31.jinja").read()
    json.dump(config, open("told/tokenizer_config.json", "w"))
    shutil.copytree("model", "parts")
    tensors = read_safetensors("parts/model.safetensors")
    names = sorted(tensors)
    for i in range(2):
        write_safetensors(f"parts/model-0000{i + 1}-of-00002.safetensors", {k: tensors[k] for k in names[i::2]})
    json.dump({"metadata": {"total_size": sum(len(t[2]) for t in tensors.values())},
               "weight_map": {k: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, k in enumerate(names)}}, open("parts/model.safetensors.index.json", "w"))
    os.remove("parts/model.safetensors")
    json.dump({"do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 20, "eos_token_id": [256], "max_new_tokens": 4}, open("model/generation_config.json", "w"))
    train = ["train", "--model", "model", "--data", "train.jsonl", *SMALL, "--train_batch_size", "2", "--quiet", "--data_proof", "none"]
    run_good(*train, "--max_steps", "4", "--save_steps", "2", "--logging_steps", "1", "--grad_norm_steps", "1", "--output", "run")
    run_good(*train, "--max_steps", "1", "--lora_r", "2", "--lora_target_modules", "q_proj,down_proj", "--output", "lora")
    run_good("ckpt", "export", "run/checkpoint-4", "--to", "bnb-4bit:double", "--output", "bnb")
    shutil.copytree("model", "pair")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        os.remove(f"pair/{name}")
    gpt2 = json.load(open(f"{GOLDEN}/tokenizers/gpt2/tokenizer.json"))["model"]
    json.dump(gpt2["vocab"], open("pair/vocab.json", "w"))
    open("pair/merges.txt", "w").write("#version: 0.2\n" + "".join((x if isinstance(x, str) else " ".join(x)) + "\n" for x in gpt2["merges"]))
    config = {k: v for k, v in json.load(open("pair/config.json")).items() if k not in ("eos_token_id", "bos_token_id")}
    json.dump(config | {"vocab_size": 1 << 17}, open("pair/config.json", "w"))
    open("run.yaml", "w").write("model: model\ndata: [train.jsonl]\ntrain:\n  max_steps: 3\nlearning_rate: 1e-3\noutput: 'x'\n")
    open("groups.json", "w").write('[{"pattern": "*norm*", "lr_factor": 0.1, "weight_decay": 0}]')
    open("order.txt", "w").write("rank 0: F0 F1 B0 B1\nrank 1: F0 B0 F1 B1\n")
    open("machine.yaml", "w").write("base: H100\nprice: 2.5\nmemory_gib: 80\nmemory_gbps: 3000\ntflops: 800\nfast_gbps: 450\nslow_gbps: 50\n")
    make_later()
    json.dump({"overrides": [{"step": 2, "key": "learning_rate", "value": 1e-3}]}, open("run/control.json", "w"))
    open("replayed.json", "w").write(subprocess.run([TRIREME, "replay", "run", "--step", "3", "--json"], check=True, stdout=subprocess.PIPE).stdout.decode().splitlines()[-1])
    run_good("data", "check", "--model", "model", "--data", "train.jsonl", *SMALL)
    cache = [f"{d}/{f}" for d, _, names in os.walk(os.environ["XDG_CACHE_HOME"]) for f in names if f.endswith(".trtok")]
    shutil.copy(cache[0], "tokens.trtok")
    os.chdir("..")


def make_later():
    """Pairs, labels, choices, prompts; files of other trainers; a saved data set; a model of text and images; a model in a hub's cache."""
    write = lambda name, records: open(name, "w").write("".join(json.dumps(r) + "\n" for r in records))
    write("prefs.jsonl", [{"prompt": f"oars {i}?", "chosen": "170.", "rejected": "7."} for i in range(8)])
    write("labels.jsonl", [{"prompt": f"oars {i}?", "completion": "170.", "label": i % 2 == 0} for i in range(8)])
    write("choices.jsonl", [{"context": "oars", "choices": ["170", "7"], "gold": i % 2} for i in range(4)])
    write("asks.jsonl", [{"prompt": "oars"}, {"prompt": "banks"}])
    os.makedirs("foreign")
    for name, text in FOREIGN.items():
        open(f"foreign/{name}", "w").write(text)
    shutil.copytree(f"{GOLDEN}/../table/golden/saved", "saved")
    shutil.copytree(f"{GOLDEN}/gemma3_vision", "vision")
    shutil.copytree("model", "hub/models--org--name/snapshots/abc123")
    os.makedirs("hub/models--org--name/refs")
    open("hub/models--org--name/refs/main", "w").write("abc123")


FOREIGN = {
    "deepspeed.json": json.dumps({"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 2, "bf16": {"enabled": True}, "gradient_clipping": 1.0,
                                  "zero_optimization": {"stage": 2, "overlap_comm": True, "offload_optimizer": {"device": "none"}},
                                  "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8}}}),
    "trainer.json": json.dumps({"output_dir": "x", "per_device_train_batch_size": 2, "learning_rate": 2e-5, "lr_scheduler_kwargs": {"num_cycles": 2}, "fsdp": "", "bf16": True}),
    "accelerate.yaml": "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 8\nnum_machines: 2\nmixed_precision: bf16\n"
                       "fsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n",
    "axolotl.yaml": "base_model: model\ndatasets:\n  - &d\n    path: train.jsonl\n    type: completion\n    field: text\n  - *d\nadapter: lora\nlora_r: 8\n"
                    "lora_target_modules: [q_proj]\nsequence_len: 32\nmicro_batch_size: 2\nnum_epochs: 1\noptimizer: adamw_torch\noutput_dir: x\nwandb_project:\n",
    "llamafactory.yaml": "model_name_or_path: model\nstage: sft\ndo_train: true\nfinetuning_type: lora\ndataset: mine,other\ndataset_dir: foreign\ntemplate: qwen\ncutoff_len: 32\n"
                         "max_steps: 3\nper_device_train_batch_size: 1\nlearning_rate: 1.0e-4\noutput_dir: x\n",
    "dataset_info.json": json.dumps({"mine": {"file_name": "../alpaca.jsonl", "columns": {"prompt": "instruction", "query": "input", "response": "output"}},
                                     "other": {"file_name": "../sharegpt.jsonl", "formatting": "sharegpt", "tags": {"role_tag": "from", "content_tag": "value"}}}),
    "torchtune.yaml": "output_dir: x\ntokenizer:\n  _component_: torchtune.models.llama3.llama3_tokenizer\n  path: ${checkpointer.checkpoint_dir}/t\n  max_seq_len: 32\n"
                      "dataset:\n  _component_: torchtune.datasets.alpaca_dataset\n  source: yahma/alpaca-cleaned\ncheckpointer:\n  checkpoint_dir: model\n"
                      "optimizer:\n  _component_: torch.optim.AdamW\n  lr: 2e-5\nbatch_size: 2\nepochs: 1\n",
}
QUANT = ["awq", "bnb_int8", "float_quantized", "fp4", "fp8_blocks", "fp8_rows", "fp8_tensor", "gptq_8", "gptq_v2_ordered", "int_quantized", "mxfp4",
         "nf4_block_32", "nf4_double", "nf4_odd", "packed_4", "packed_4_zeros"]
TOKENIZERS = ["bert", "gpt2", "llama2", "llama3", "gemma", "unigram", "pcre", "words", "t5"]
check = lambda model, data: ["data", "check", "--model", model, "--data", data, *SMALL]
evaluate = lambda model: ["eval", "--model", model, "--data", "train.jsonl", *SMALL]
generate = lambda model: ["generate", "--model", model, "--prompt", "oars", "--max_new_tokens", "2", "--threads", "1"]
resume = ["train", "--model", "model", "--data", "train.jsonl", *SMALL, "--train_batch_size", "2", "--data_proof", "none", "--max_steps", "5", "--save_steps", "0",
          "--resume_from_checkpoint", "auto", "--allow_change", "schedule_steps", "--output", "run"]
export = lambda model, form: ["ckpt", "export", model, "--to", form, "--rows", "0", "--output", "x"]
once = lambda data, *more: ["train", "--model", "model", "--data", data, *SMALL, "--train_batch_size", "2", "--max_steps", "1", "--save_steps", "0", "--output", "once", *more]
foreign = lambda name, mutate: ("foreign file", f"foreign/{name}", mutate, "model foreign", [["config", "import", f"foreign/{name}"], ["config", "import", f"foreign/{name}", "--json"],
                                                                                         ["config", "show", "--config", f"foreign/{name}"]])

# row of the page, file, mutation, the directories that the verb needs, the verbs
CASES = [
    ("config.json", "model/config.json", m.json_file, "model", [["plan", "--model", "model", "--sequence_length", "32"], evaluate("model"), ["plan", "--legal", "--model", "model"]]),
    ("tokenizer.json", "model/tokenizer.json", m.tokenizer, "model", [check("model", "train.jsonl"), check("model", "plain.txt")]),
    ("tokenizer.json", "pair/vocab.json", m.json_file, "pair", [check("pair", "plain.txt")]),
    ("tokenizer.json", "pair/merges.txt", m.words, "pair", [check("pair", "plain.txt")]),
    ("tokenizer.json", "TOKENIZER", m.tokenizer, "model", [check("model", "plain.txt")]),
    ("tokenizer_config.json", "told/tokenizer_config.json", m.json_file, "told", [check("told", "chat.jsonl"), check("told", "plain.txt")]),
    ("tokenizer_config.json", "model/special_tokens_map.json", m.json_file, "model", [check("model", "plain.txt")]),
    ("chat template", "talk/chat_template.jinja", m.template, "talk", [check("talk", "chat.jsonl")]),
    ("generation_config.json", "model/generation_config.json", m.json_file, "model", [generate("model")]),
    ("safetensors", "model/model.safetensors", m.safetensors, "model", [evaluate("model"), ["ckpt", "diff", "model", "model"]]),
    ("safetensors", "parts/model-00001-of-00002.safetensors", m.safetensors, "parts", [evaluate("parts")]),
    ("safetensors index", "parts/model.safetensors.index.json", m.json_file, "parts", [evaluate("parts"), ["ckpt", "diff", "parts", "parts"]]),
    ("adapter_config.json", "lora/adapter_config.json", m.json_file, "lora model", [evaluate("lora"), ["ckpt", "merge", "lora", "--output", "merged"]]),
    ("safetensors", "lora/adapter_model.safetensors", m.safetensors, "lora model", [evaluate("lora")]),
    ("quantised", "bnb/model.safetensors", m.safetensors, "bnb", [evaluate("bnb")]),
    ("quantised", "QUANT/model.safetensors", m.safetensors, "", [["ckpt", "diff", "QUANT", "QUANT"]]),
    ("config.json", "QUANT/config.json", m.json_file, "", [["ckpt", "diff", "QUANT", "QUANT"]]),
    ("jsonl", "train.jsonl", m.lines, "model", [check("model", "train.jsonl")]),
    ("jsonl", "chat.jsonl", m.lines, "talk", [check("talk", "chat.jsonl")]),
    ("jsonl", "RECORDS", m.lines, "model", [check("model", "RECORDS")]),
    ("json", "TABLE rows-.*.json", m.array, "model", [check("model", "TABLE")]),
    ("csv", "TABLE rows.*sv", m.csv, "model", [check("model", "TABLE")]),
    ("parquet", "TABLE (chat|flat).*parquet", m.parquet, "model", [[*check("model", "TABLE"), "--text_key", "text"], check("model", "TABLE#[:50%]")]),
    ("arrow", "TABLE (chat|words).*arrow", m.ends, "model", [[*check("model", "TABLE"), "--text_key", "text"], check("model", "TABLE#[:50%]")]),
    ("txt", "plain.txt", m.text, "model", [check("model", "plain.txt")]),
    ("gz", "train.jsonl.gz", m.gz, "model", [check("model", "train.jsonl.gz")]),
    ("zst", "train.jsonl.zst", m.zst, "model", [check("model", "train.jsonl.zst")]),
    ("trtok", "tokens.trtok", m.raw, "model", [check("model", "tokens.trtok")]),
    ("trtok", "CACHE", m.raw, "model", [check("model", "train.jsonl")]),
    ("checkpoint", "lora/checkpoint-1/trireme/base.json", m.json_file, "lora model", [["ckpt", "merge", "lora/checkpoint-1", "--output", "merged"], evaluate("lora/checkpoint-1")]),
    ("checkpoint", "run/checkpoint-4/trireme/manifest.json", m.json_file, "run model", [["ckpt", "verify", "run/checkpoint-4"], ["ckpt", "list", "run"], ["ckpt", "show", "run/checkpoint-4"], resume]),
    ("checkpoint", "run/checkpoint-4/trireme/state.json", m.json_file, "run model", [["ckpt", "show", "run/checkpoint-4"], ["ckpt", "verify", "run/checkpoint-4"], resume]),
    ("checkpoint", "run/checkpoint-4/trainer_state.json", m.json_file, "run model", [["ckpt", "show", "run/checkpoint-4"], resume]),
    ("checkpoint", "run/checkpoint-4/trireme/optim-0000-of-0001.safetensors", m.safetensors, "run model", [["ckpt", "verify", "run/checkpoint-4"], resume]),
    ("checkpoint", "run/latest", m.raw, "run model", [["ckpt", "newest", "run"], resume]),
    ("events.jsonl", "run/events.jsonl", m.lines, "run model", [["watch", "run"], ["plan", "--model", "model", "--machine", "H100", "--compare", "run", "--sequence_length", "32"], resume]),
    ("phase page", "run/.trireme/phase-0000", m.raw, "run", [["watch", "run"], ["watch", "run", "--json"]]),
    ("run file", "run.yaml", m.words, "model", [["config", "show", "--config", "run.yaml"]]),
    ("machine file", "machine.yaml", m.words, "model", [["plan", "--model", "model", "--machine", "machine.yaml", "--sequence_length", "32"]]),
    ("optim_groups", "groups.json", m.json_file, "model", [["plan", "--model", "model", "--optim_groups", "groups.json", "--sequence_length", "32"]]),
    ("events.jsonl", "run/events.jsonl", m.lines, "run model", [["runs", "."], ["runs", "diff", "run", "run"], ["watch", "run", "--html", "page.html"], ["explain", "run", "--step", "2"],
                                                                ["replay", "run", "--step", "3"], ["data", "show", "run", "--step", "2"]]),
    ("jsonl", "prefs.jsonl", m.lines, "model", [once("prefs.jsonl", "--task", "dpo"), once("prefs.jsonl", "--task", "orpo")]),
    ("jsonl", "labels.jsonl", m.lines, "model", [once("labels.jsonl", "--task", "kto")]),
    ("jsonl", "choices.jsonl", m.lines, "model", [["eval", "--model", "model", "--choices", "choices.jsonl", *SMALL], once("train.jsonl", "--eval_choices", "choices.jsonl", "--eval_steps", "1")]),
    ("jsonl", "asks.jsonl", m.lines, "model", [["generate", "--model", "model", "--prompts", "asks.jsonl", "--max_new_tokens", "2", "--threads", "1"],
                                               once("train.jsonl", "--sample_prompts", "asks.jsonl", "--eval_data", "train.jsonl", "--eval_steps", "1")]),
    *(foreign(name, m.json_file if name.endswith("json") else m.words) for name in sorted(FOREIGN) if name != "dataset_info.json"),
    ("foreign file", "foreign/dataset_info.json", m.json_file, "model foreign", [["config", "import", "foreign/llamafactory.yaml"]]),
    ("dataset file", "saved/dataset_dict.json", m.json_file, "model saved", [check("model", "saved"), check("model", "saved#train[:50%]")]),
    ("dataset file", "saved/test/state.json", m.json_file, "model saved", [check("model", "saved/test"), check("model", "saved#test")]),
    ("arrow", "saved/train/data-00001-of-00002.arrow", m.ends, "model saved", [check("model", "saved#train")]),
    ("config.json", "vision/config.json", m.json_file, "vision", [["plan", "--model", "vision", "--sequence_length", "32"], ["plan", "--legal", "--model", "vision"]]),
    ("safetensors", "vision/model.safetensors", m.safetensors, "vision", [["ckpt", "diff", "vision", "vision"]]),
    ("hub name", "hub/models--org--name/refs/main", m.raw, "hub", [["plan", "--model", "org/name", "--sequence_length", "32"]]),
    ("tokenizer.json", "model/tokenizer.json", m.tokenizer, "model", [export("model", "gguf:f16"), export("model", "ollama")]),
    ("tokenizer.json", "TOKENIZER", m.tokenizer, "model", [export("model", "gguf:f16")]),
    ("config.json", "model/config.json", m.json_file, "model", [export("model", "gguf:q8_0"), export("model", "bnb-4bit")]),
    ("safetensors", "model/model.safetensors", m.safetensors, "model", [export("model", "gguf:q8_0"), export("model", "bnb-4bit"), export("model", "gguf:bf16")]),
    ("chat template", "talk/chat_template.jinja", m.template, "talk", [export("talk", "ollama"), generate("talk")]),
    ("generation_config.json", "model/generation_config.json", m.json_file, "model", [export("model", "ollama"), once("train.jsonl")]),
    ("adapter_config.json", "lora/adapter_config.json", m.json_file, "lora model", [export("lora", "vllm"), export("lora", "peft"), once("train.jsonl", "--model_base", "model")]),
    ("checkpoint", "run/control.json", m.json_file, "run model", [resume]),
    ("events.jsonl", "run/grad_norms.jsonl", m.lines, "run model", [["watch", "run", "--html", "page.html"], resume]),
    ("checkpoint", "run/checkpoint-4/trireme/manifest.json", m.json_file, "run model", [["ckpt", "reshard", "run/checkpoint-4", "--output", "x"], ["ckpt", "prune", "run", "--save_total_limit", "1"],
                                                                                        ["ckpt", "diff", "run/checkpoint-4", "run/checkpoint-4"]]),
    ("checkpoint", "run/checkpoint-4/trireme/optim-0000-of-0001.safetensors", m.safetensors, "run model", [["ckpt", "reshard", "run/checkpoint-4", "--output", "x"]]),
    ("run file", "replayed.json", m.json_file, "run model", [["replay", "run", "--step", "3", "--against", "replayed.json"]]),
    ("pipeline schedule", "order.txt", m.words, "model", [["plan", "--model", "model", "--pp", "2", "--pp_schedule", "order.txt", "--gradient_accumulation_steps", "2", "--sequence_length", "32"]]),
]
DATA = ["train.jsonl", "chat.jsonl", "plain.txt", "alpaca.jsonl", "sharegpt.jsonl"]


# ---- one file ----

def place(i, dice, where):
    """Makes the directory of file i and returns row, verb, hostile path."""
    row, name, mutate, needs, verbs = CASES[i % len(CASES)]
    verb = dice.choice(verbs)
    os.makedirs(where)
    for d in needs.split():
        shutil.copytree(f"good/{d}", f"{where}/{d}", symlinks=True)
    for d in DATA:
        shutil.copy(f"good/{d}", f"{where}/{d}")
    swap = lambda old, new: (name.replace(old, new), [w.replace(old, new) for w in verb])
    if name.startswith("QUANT"):
        kind = dice.choice(QUANT)
        shutil.copytree(f"{GOLDEN}/quant/{kind}", f"{where}/{kind}")
        name, verb = swap("QUANT", kind)
    elif name == "TOKENIZER":
        name = "model/tokenizer.json"
        shutil.copy(f"{GOLDEN}/tokenizers/{dice.choice(TOKENIZERS)}/tokenizer.json", f"{where}/{name}")
        for extra in ("tokenizer_config.json", "special_tokens_map.json"):
            os.remove(f"{where}/model/{extra}")
        config = json.load(open(f"{where}/model/config.json"))
        config |= {"vocab_size": 1 << 17}
        [config.pop(k, None) for k in ("eos_token_id", "bos_token_id")]
        json.dump(config, open(f"{where}/model/config.json", "w"))
    elif name == "RECORDS":
        name, verb = swap("RECORDS", dice.choice(["pairs", "alpaca", "ids", "sharegpt"]) + ".jsonl")
    elif name.startswith("TABLE"):
        table = dice.choice([x for x in sorted(os.listdir("good/tables")) if re.fullmatch(name[6:], x)])
        shutil.copy(f"good/tables/{table}", f"{where}/{table}")
        name, verb = table, [w.replace("TABLE", table) for w in verb]
    elif name == "CACHE":
        subprocess.run([TRIREME, *verb], cwd=where, env={**os.environ, "XDG_CACHE_HOME": os.path.abspath(f"{where}/cache")}, check=True, stdout=subprocess.DEVNULL)
        name = dice.choice(sorted(os.path.relpath(f"{d}/{f}", where) for d, _, names in os.walk(f"{where}/cache") for f in names))
    path = f"{where}/{name}"
    if not os.path.exists(path):
        shutil.copy(f"good/{name}", path)
    odd = dice.random()
    data = open(path, "rb").read()
    if odd < 0.03:      # no file at all, but something that has its name
        os.remove(path)
        [lambda: os.mkfifo(path), lambda: os.mkdir(path), lambda: os.symlink("/dev/zero", path), lambda: os.symlink(path, path), lambda: None,
         lambda: open(path, "wb").truncate(dice.choice([300 << 20, 1 << 30]))][dice.randrange(6)]()
    else:
        open(path, "wb").write(mutate(dice, data))
    return row, verb, path


def undamaged():
    """Every verb does its work on the good files: a verb that is refused before it reads them would find nothing."""
    for _, name, _, _, verbs in CASES:
        for verb in [] if re.match("QUANT|TABLE|RECORDS", name) else verbs:
            shutil.copytree("good", "case-good", symlinks=True)
            code, _, _, out = run(verb, "case-good", 60)
            assert code == 0, f"{name}, undamaged: exit {code}: trireme {' '.join(verb)}: {out[-300:]!r}"
            shutil.rmtree("case-good")


def run(verb, where, cpu_s):
    """See below; asks a process that was forked when this one was small, because a child's memory counts from its parent's."""
    server = idle.get()
    try:
        server.write(json.dumps([verb, where, cpu_s]) + "\n")
        server.flush()
        code, used_s, mib, out = json.loads(server.readline())
        return code, used_s, mib, out.encode("latin-1")
    finally:
        idle.put(server)


def serve():
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        f = theirs.makefile("rw")
        for line in f:
            code, used_s, mib, out = run_here(*json.loads(line))
            f.write(json.dumps([code, used_s, mib, out.decode("latin-1")]) + "\n")
            f.flush()
        os._exit(0)
    theirs.close()
    return ours.makefile("rw")


def run_here(verb, where, cpu_s):
    """Exit code or minus the signal, CPU seconds, MiB, output. All but `train`, which draws a curve there, and `watch`, which
    follows a run until it ends, write to a terminal."""
    is_tty = verb[0] not in ("train", "watch")
    master, slave = pty.openpty() if is_tty else os.pipe()

    def bound():
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 5, int(cpu_s) + 10))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if not is_sanitized:
            resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    p = subprocess.Popen([TRIREME, *verb], cwd=where, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave, preexec_fn=bound,
                         env={**os.environ, "XDG_CACHE_HOME": os.path.abspath(f"{where}/cache"), "HF_HUB_CACHE": os.path.abspath(f"{where}/hub"), "ASAN_OPTIONS": "allocator_may_return_null=1:exitcode=99",
                              "UBSAN_OPTIONS": "exitcode=99:print_stacktrace=1"})
    os.close(slave)
    out, end, status = b"", time.monotonic() + HANG, None
    while status is None:
        if select.select([master], [], [], 0.002)[0]:
            try:
                got = os.read(master, 1 << 16)
            except OSError:
                got = b""
            out = (out + got)[:1 << 20]
            if not got:
                time.sleep(0.001)
        pid, code, usage = os.wait4(p.pid, os.WNOHANG)
        if pid:
            status = code
        elif time.monotonic() > end:
            p.send_signal(signal.SIGKILL)
            _, status, usage = os.wait4(p.pid, 0)
            os.close(master)
            return "hang", 0, 0, out
    while select.select([master], [], [], 0)[0]:
        try:
            got = os.read(master, 1 << 16)
        except OSError:
            break
        if not got:
            break
        out = (out + got)[:1 << 20]
    os.close(master)
    p.returncode = os.waitstatus_to_exitcode(status)
    return p.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, out


def judge(i, row, verb, path, got):
    code, cpu_s, mib, out = got
    size = os.path.getsize(path) if os.path.isfile(path) else 0
    factor, free_mib, free_s, byte_us = LIMITS[row]
    bad = []
    if code == "hang":
        return [f"took more than {HANG} s"]
    if planted == "code" or code not in CODES | (DAMAGED if row == "checkpoint" and verb[0] == "ckpt" else set()):
        bad.append(f"exit {code}")
    if planted == "bytes":
        out += b"\x1b[2J"
    out = OWN.sub(b"", out.replace(b"\x1b[H\x1b[J", b"", 1) if verb[0] == "watch" else out)
    raw = re.search(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]", out)
    if raw:
        bad.append(f"control byte {raw.group()!r} at {raw.start()} of its output")
    if not is_sanitized:
        if mib > free_mib + factor * size / (1 << 20) or planted == "memory":
            bad.append(f"{mib:.0f} MiB for {size} bytes, may be {free_mib + factor * size / (1 << 20):.0f}")
        if cpu_s > free_s + byte_us * size * 1e-6 or planted == "work":
            bad.append(f"{cpu_s:.2f} CPU s for {size} bytes, may be {free_s + byte_us * size * 1e-6:.2f}")
    return bad


def one(i):
    dice, where = random.Random(seed * 1000003 + i), f"case-{i}"
    row, verb, path = place(i, dice, where)
    got = run(verb, where, 60 + LIMITS[row][2] * 4)
    bad = judge(i, row, verb, path, got)
    with lock:
        codes[got[0]] = codes.get(got[0], 0) + 1
        worst_mib[row] = max(worst_mib.get(row, (0, 0)), (got[2], i))
        worst_s[row] = max(worst_s.get(row, (0, 0)), (got[1], i))
        if bad:
            finds.append(i)
            print(f"file {i}: {row}: {'; '.join(bad)}: trireme {' '.join(verb)} ({path}): {got[3][-300:]!r}", flush=True)
    if only is None:
        shutil.rmtree(where, ignore_errors=True)
    else:
        print(f"{path} stays; exit {got[0]}, {got[1]:.2f} CPU s, {got[2]:.0f} MiB: {got[3][-2000:].decode(errors='replace')}")


def worker(mine):
    for i in mine:
        try:
            one(i)
        except Exception as e:  # the generator's own fault is a find too
            with lock:
                finds.append(i)
                print(f"file {i}: the campaign failed: {e!r}", flush=True)


LIMITS, lock, codes, finds, worst_mib, worst_s = limits(), threading.Lock(), {}, [], {}, {}
assert {row for row, *_ in CASES} <= LIMITS.keys(), {row for row, *_ in CASES} - LIMITS.keys()
sys.setrecursionlimit(20000)
threading.stack_size(256 << 20)
idle = queue.Queue()
[idle.put(serve()) for _ in range(2)]
make_good()
undamaged()
start = time.monotonic()
todo = [only] if only is not None else range(n_files)
threads = [threading.Thread(target=worker, args=(todo[k::2],)) for k in range(2)]
[t.start() for t in threads]
[t.join() for t in threads]
for row in LIMITS:
    if row in worst_mib:
        print(f"{row}: at most {worst_mib[row][0]:.0f} MiB (file {worst_mib[row][1]}), {worst_s[row][0]:.2f} CPU s (file {worst_s[row][1]})")
print(f"T19: seed {seed}, {len(todo)} files, {len(CASES)} kinds, {time.monotonic() - start:.0f} s, exit codes {dict(sorted(codes.items(), key=str))}: {len(finds)} finds")
sys.exit(bool(finds))
