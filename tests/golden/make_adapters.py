#!/usr/bin/env python3
"""Makes the golden adapters: PEFT adapters with random weights on the golden models, and what PEFT computes with them.

Every case is a directory of tests/golden/adapters: adapter_config.json and adapter_model.safetensors as PEFT saves them, and
golden.safetensors with logits, loss and gradients of what is trained, and those parameters after ten AdamW steps. The batch is that
of the golden model (base_model_name_or_path). As in make_golden.py the reference runs in float64.
"""
import argparse
import pathlib
import shutil
import zlib

import peft
import safetensors.torch
import torch
import transformers
from make_golden import families, float32_is, keep_rotary_tables, results

HERE = pathlib.Path(__file__).parent


def trireme_name(name, names):
    """PEFT's parameter by the name of its key in the file, without the prefix; what is trained of the base has its plain name,
    which names may hold: those of parameters that are called otherwise in files than in the network."""
    name = name.removeprefix("base_model.model.").replace(".modules_to_save.default.", ".").replace(".base_layer.", ".")
    name = name.replace("lora_magnitude_vector.default.weight", "lora_magnitude_vector")
    name = name.replace(".default.", ".").removesuffix(".default")
    return names.get(name, name)


def randomize(model, seed):
    """Every part of the adapter matters: nothing is zero, magnitudes are not the norms they began as."""
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        noise = torch.randn(p.shape, generator=g)
        is_new = "lora_" in name and "magnitude" not in name
        p.data = 0.25 * noise if is_new else p.data * (1 + 0.2 * noise) + 0.05 * noise


def documents_of(begin):
    """Lengths of the documents of each row, from where each token's document begins."""
    return [[int(n) for n in torch.unique_consecutive(row, return_counts=True)[1]] for row in begin]


def reference(model, batch, names):
    tokens, targets, documents = batch["tokens"].long(), batch["targets"].long(), documents_of(batch["begin"])
    params = {trireme_name(n, names): p for n, p in model.named_parameters() if p.requires_grad}
    golden = results(model, params, tokens, targets, documents)
    return golden | {"logits": golden["logits"][0].clone()}


def changes_base(options):
    return options.get("init_lora_weights") in ("pissa", "olora")


def trainable(wide, directory):
    """The adapter of a directory on a model in float64, as a user loads it."""
    config = peft.LoraConfig.from_pretrained(directory)
    if not changes_base(vars(config)):
        return peft.PeftModel.from_pretrained(wide, directory, is_trainable=True, autocast_adapter_dtype=False)
    config.inference_mode = False
    with float32_is(torch.float64):  # a start is computed in float32, which is no reference: the same steps in float64
        model = peft.get_peft_model(wide, config, autocast_adapter_dtype=False)
    peft.set_peft_model_state_dict(model, safetensors.torch.load_file(directory / "adapter_model.safetensors"))
    return model


def make_case(root, base, variant, options, seed):
    directory = root / f"{base}-{variant}"
    torch.manual_seed(seed)  # what PEFT draws, a magnitude begins as
    shutil.rmtree(directory, ignore_errors=True)
    plain = lambda: transformers.AutoModelForCausalLM.from_pretrained(HERE / base, attn_implementation="eager")
    config = peft.LoraConfig(task_type="CAUSAL_LM", **options)
    if not (isinstance(options.get("init_lora_weights"), str)):
        config.init_lora_weights = False
    model = peft.get_peft_model(plain(), config)
    randomize(model, seed)
    model.peft_config["default"].base_model_name_or_path = f"tests/golden/{base}"
    model.save_pretrained(directory, save_embedding_layers=False)
    (directory / "README.md").unlink(missing_ok=True)
    model = trainable(plain().double(), directory)
    model = model.double().train()
    keep_rotary_tables(model)
    batch = safetensors.torch.load_file(HERE / base / "golden.safetensors")
    with float32_is(torch.float64):
        golden = reference(model, batch, families().get(base, {}).get("names", {}))
    safetensors.torch.save_file(golden, directory / "golden.safetensors")
    for file in directory.iterdir():
        file.chmod(0o644)
    size = sum(f.stat().st_size for f in directory.iterdir())
    print(f"{directory.name:36} loss {golden['loss'].item():8.4f}  norm {golden['grad_norm'].item():9.4f}  {size / 1e3:6.1f} kB")
    return size


# base: all linears that are targeted, one attention and one mlp linear, norms (modules_to_save), the embedding, is the head apart?
FAMILIES = {
    "gpt2_inner_untied": (["c_attn", "c_proj", "c_fc"], ["c_attn", "mlp.c_proj"], ["ln_1", "ln_f"], "wte", True),
    "opt_pre_norm": ("all-linear", ["v_proj", "fc2"], ["final_layer_norm"], "embed_tokens", False),
    "llama_mqa_bias": ("all-linear", ["k_proj", "down_proj"], ["norm"], "embed_tokens", True),
    "mistral_window": ("all-linear", ["o_proj", "up_proj"], ["input_layernorm"], "embed_tokens", True),
    "qwen2_window": ("all-linear", ["q_proj", "v_proj"], ["norm"], "embed_tokens", True),
    "qwen3": ("all-linear", ["q_proj", "gate_proj"], ["q_norm"], "embed_tokens", True),
    "gemma2": ("all-linear", ["v_proj", "o_proj"], ["post_attention_layernorm"], "embed_tokens", False),
    "gemma3": ("all-linear", ["k_proj", "gate_proj"], ["pre_feedforward_layernorm"], "embed_tokens", False),
}
LATER = {  # their seeds come from their names, so that they may stand in any order
    "gemma": ("all-linear", ["o_proj", "up_proj"], ["input_layernorm"], "embed_tokens", False),
    "granite": ("all-linear", ["v_proj", "down_proj"], ["norm"], "embed_tokens", False),
    "smollm3": ("all-linear", ["k_proj", "gate_proj"], ["post_attention_layernorm"], "embed_tokens", False),
    "phi3": ("all-linear", ["qkv_proj", "gate_up_proj"], ["norm"], "embed_tokens", True),
    "olmo2_bias": ("all-linear", ["q_proj", "up_proj"], ["q_norm"], "embed_tokens", True),
    "olmo3": ("all-linear", ["k_proj", "down_proj"], ["k_norm"], "embed_tokens", True),
    "gpt_neox": ("all-linear", ["query_key_value", "dense_4h_to_h"], ["input_layernorm"], "embed_in", True),
    "falcon": ("all-linear", ["query_key_value", "dense_h_to_4h"], ["ln_attn"], "word_embeddings", False),
    "stablelm": ("all-linear", ["q_proj", "gate_proj"], ["norm"], "embed_tokens", True),
    "starcoder2": ("all-linear", ["v_proj", "c_proj"], ["input_layernorm"], "embed_tokens", False),
    "cohere": ("all-linear", ["o_proj", "gate_proj"], ["input_layernorm"], "embed_tokens", False),
    "cohere2": ("all-linear", ["q_proj", "down_proj"], ["norm"], "embed_tokens", False),
    "glm": ("all-linear", ["k_proj", "gate_up_proj"], ["post_attention_layernorm"], "embed_tokens", True),
    "glm4": ("all-linear", ["v_proj", "gate_up_proj"], ["post_mlp_layernorm"], "embed_tokens", True),
    "ministral": ("all-linear", ["q_proj", "o_proj"], ["post_attention_layernorm"], "embed_tokens", True),
}


def kinds(families):
    for base, (every, some, norms, embedding, is_apart) in families.items():
        turned = dict(fan_in_fan_out=True) if base.startswith("gpt2") else {}
        head = ["lm_head"] if is_apart else []
        yield base, "lora", dict(r=2, lora_alpha=4, target_modules=every, **turned)
        yield base, "rslora", dict(r=3, lora_alpha=5, use_rslora=True, target_modules=some, lora_bias=True,
                                   rank_pattern={some[0]: 1}, alpha_pattern={some[1]: 7}, **turned)
        yield base, "dora", dict(r=2, lora_alpha=3, use_dora=True, target_modules=every, **turned)
        yield base, "saved", dict(r=2, lora_alpha=2, target_modules=some, modules_to_save=norms + head,
                                  layers_to_transform=[1], bias="lora_only", **turned)
        yield base, "embedding", dict(r=2, lora_alpha=4, target_modules=some[:1] + [embedding], **turned)


def cases():
    yield from kinds(FAMILIES)
    # starts that change the base: PEFT makes them anew from the base when it reads the directory
    for base, variant in (("gpt2_inner_untied", "pissa"), ("gemma2", "pissa"), ("llama_mqa_bias", "olora"), ("qwen3", "olora")):
        every, some, _, embedding, _ = FAMILIES[base]
        turned = dict(fan_in_fan_out=True) if base.startswith("gpt2") else {}
        yield base, variant, dict(r=3, lora_alpha=5, use_rslora=base == "gemma2", target_modules=every, init_lora_weights=variant,
                                  rank_pattern={some[0]: 2}, **turned)
    # the head as a target, of a matrix of its own and of one that is the embedding's too
    for base in ("gpt2_inner_untied", "qwen3", "gemma2", "opt_pre_norm"):
        some, turned = FAMILIES[base][1], dict(fan_in_fan_out=True) if base.startswith("gpt2") else {}
        yield base, "head", dict(r=2, lora_alpha=5, target_modules=some[:1] + ["lm_head"], use_rslora=base == "qwen3", **turned)
    # single tokens: of the embedding, of both tables, of a matrix that is both, and of such a matrix apart for each use
    for base, tokens in (("qwen3", [24, 3, 41]), ("gpt2_inner_untied", {"wte": [31, 4], "lm_head": [2, 11, 30]}), ("gemma3", [1, 33]),
                         ("gemma2", {"embed_tokens": [43, 4], "lm_head": [43, 4]}),
                         ("opt_pre_norm", {"embed_tokens": [20, 13], "lm_head": [25, 3]})):
        some, turned = FAMILIES[base][1], dict(fan_in_fan_out=True) if base.startswith("gpt2") else {}
        yield base, "tokens", dict(r=2, lora_alpha=5, target_modules=some, trainable_token_indices=tokens, **turned)
    # starts that change the base with magnitudes, and of the head
    for base, init in (("gpt2_inner_untied", "pissa"), ("qwen3", "olora")):
        turned = dict(fan_in_fan_out=True) if base.startswith("gpt2") else {}
        yield base, f"dora_{init}", dict(r=2, lora_alpha=3, use_dora=True, target_modules=FAMILIES[base][0], init_lora_weights=init, **turned)
    for base, init in (("llama_mqa_bias", "olora"), ("qwen2_window", "pissa")):
        yield base, f"head_{init}", dict(r=3, lora_alpha=4, target_modules=FAMILIES[base][1][:1] + ["lm_head"], init_lora_weights=init)
    # q | k | v and gate | up in one matrix each
    yield "phi3", "lora", dict(r=2, lora_alpha=4, target_modules="all-linear")
    yield "phi3", "dora", dict(r=2, lora_alpha=3, use_dora=True, target_modules=["qkv_proj", "gate_up_proj"])
    # heads in groups, and a head that files call otherwise
    yield "gpt_neox", "lora", dict(r=2, lora_alpha=4, target_modules="all-linear")
    yield "gpt_neox", "head", dict(r=2, lora_alpha=5, target_modules=["query_key_value", "lm_head"])
    yield "falcon", "dora", dict(r=2, lora_alpha=3, use_dora=True, target_modules=["query_key_value", "dense"])
    yield "falcon_multi_query", "lora", dict(r=2, lora_alpha=4, target_modules="all-linear")
    # magnitudes of a table's columns, of a table that is the head's too
    for base, rank in (("qwen3", 3), ("gemma3", 2)):
        some = FAMILIES[base][1]
        yield base, "dora_embedding", dict(r=rank, lora_alpha=5, use_dora=True, target_modules=some[:1] + ["embed_tokens"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "adapters")
    parser.add_argument("names", nargs="*", help="cases to make; all when none is named")
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    total = 0
    every = [(5000 + 10 * i, *case) for i, case in enumerate(cases())]
    made = {case[1:3] for case in every}
    every += [(zlib.crc32(f"{c[0]}-{c[1]}".encode()) >> 1, *c) for c in kinds(LATER) if c[:2] not in made]
    for seed, base, variant, options in every:
        if not args.names or f"{base}-{variant}" in args.names or variant in args.names:
            total += make_case(args.out, base, variant, options, seed)
    print(f"total {total / 1e6:.2f} MB, torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}")


if __name__ == "__main__":
    main()
