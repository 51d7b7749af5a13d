#!/usr/bin/env python3
"""GGUF files of `trireme ckpt export` against PyPI's gguf and llama-cpp-python: VENV/bin/python check_gguf.py TRIREME

For each golden model with an architecture of llama.cpp and each type: gguf reads the file, its reference decoder gives
our decoded values, its quantiser (or llama.cpp's) gives our bytes, and llama.cpp's logits are those of the model.
`--write` records quant/ggml.safetensors, which tests/export/test_ggml.c compares with (needs llama_cpp's libggml).
Needs: pip install gguf llama-cpp-python safetensors numpy torch transformers.
"""
import ctypes, glob, hashlib, json, os, shutil, subprocess, sys, tempfile
import numpy as np

here = os.path.dirname(os.path.abspath(__file__))
NAMES = {"f16": 1, "bf16": 32, "q8_0": 7, "q4_0": 2, "q4_k_m": 15, "q6_k": 18}
K = {"Q4_0": 2, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14}


def ggml():
    import llama_cpp

    lib = ctypes.CDLL(glob.glob(os.path.join(os.path.dirname(llama_cpp.__file__), "lib", "libggml-base.so*"))[0])
    lib.ggml_quantize_chunk.restype = ctypes.c_size_t
    lib.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
                                        ctypes.c_int64, ctypes.c_void_p]
    return lib


def llama_bytes(lib, name, x):
    """Bytes of llama.cpp's quantiser for a float32 matrix."""
    import gguf

    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    x = np.ascontiguousarray(x, np.float32)
    out = np.zeros(x.size // block * size, np.uint8)
    lib.ggml_quantize_chunk(K[name], x.ctypes.data, out.ctypes.data, 0, x.shape[0], x.shape[1], None)
    return out


def sample(seed):
    """Rows of 256 with what quantisers trip over: zeros, one sign, outliers, tiny and large magnitudes, ties."""
    rng = np.random.default_rng(seed)
    rows = [rng.normal(size=256) * s for s in (1, 0.02, 1e-6, 300)]
    rows += [np.zeros(256), np.abs(rng.normal(size=256)), -np.abs(rng.normal(size=256)), np.full(256, 0.25)]
    rows += [rng.normal(size=256) * (rng.random(256) < 0.05) * 10, rng.integers(-8, 8, 256) * 0.5]
    rows += [np.concatenate([np.zeros(128), rng.normal(size=128)]), rng.standard_t(2, 256)]
    return np.array(rows, np.float32)


def record():
    import gguf
    from safetensors.numpy import save_file

    lib, x, out = ggml(), sample(1), {}
    out["x"] = x
    for name in K:
        out[name] = llama_bytes(lib, name, x)
        t = gguf.GGMLQuantizationType[name]
        values = gguf.quants.dequantize(out[name].reshape(x.shape[0], -1), t).astype(np.float32) + np.float32(0) # no -0
        out[name + ".sha256"] = np.frombuffer(hashlib.sha256(values.tobytes()).digest(), np.uint8)
    file = os.path.join(here, "quant", "ggml.safetensors")
    save_file(out, file)
    os.chmod(file, 0o644)


def logits_of(path, ids):
    import llama_cpp

    m = llama_cpp.Llama(path, n_ctx=max(64, len(ids)), n_batch=512, logits_all=True, verbose=False, type_k=0, type_v=0,
                        flash_attn=False, n_threads=2, yarn_attn_factor=-1.0,
                        yarn_beta_fast=-1.0, yarn_beta_slow=-1.0, yarn_orig_ctx=0)
    m.eval(list(map(int, ids)))
    out = np.array(m.scores[: len(ids)], np.float64)
    m.close()
    return out


def torch_logits(directory, ids):
    import torch, transformers

    m = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        return m(torch.tensor([list(map(int, ids))])).logits[0].double().numpy()


# Golden models with something that llama.cpp has no place for, without it.
VARIANTS = {
    "cohere": {"attention_bias": False}, "gemma2": {"query_pre_attn_scalar": 8}, "gemma3": {"query_pre_attn_scalar": 8},
    "olmo2_bias": {"attention_bias": False}, "falcon": {"bias": False}, "gpt2_inner_untied": {"scale_attn_weights": True},
    "gpt_neox_serial": {"attention_bias": True}, "glm": {"attention_bias": False},
    "olmo3": {"rope_scaling": None, "rope_theta": 500000.0, "rope_parameters": {
        "full_attention": {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 4.0, "original_max_position_embeddings": 158},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0}}},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0, 1], "num_hidden_layers": 5, "no_rope_layer_interval": 4,
                "layer_types": ["full_attention"] * 5},
}
# Wide enough for blocks of 256, some rows of 32 and of neither.
WIDE = {
    "llama_gqa_tied": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8, "head_dim": 64},
    "qwen2_tied": {"hidden_size": 96, "intermediate_size": 264, "num_hidden_layers": 3, "tie_word_embeddings": False,
                   "layer_types": ["full_attention"] * 3},
    "gpt2_tied": {"n_embd": 256, "n_layer": 8, "n_head": 4},
    "falcon_multi_query": {"hidden_size": 256, "ffn_hidden_size": 512, "num_hidden_layers": 17},
}
# The other families, in rows of 64 and 96: types with blocks of 32.
ROWS = {"hidden_size": 64, "intermediate_size": 96}
FAMILIES = {name: {**ROWS, **VARIANTS.get(name, {}), **more} for name, more in {
    "mistral_window": {"head_dim": 32}, "granite": {}, "smollm3": {}, "qwen3": {"head_dim": 32}, "starcoder2": {}, "stablelm": {},
    "gemma": {"head_dim": 32}, "gemma2": {"head_dim": 32, "query_pre_attn_scalar": 32}, "gemma3": {"head_dim": 32, "query_pre_attn_scalar": 32},
    "phi3": {"num_attention_heads": 8, "num_key_value_heads": 4}, "olmo2_bias": {}, "olmo3": {}, "gpt_neox": {}, "cohere": {},
    "cohere2": {"head_dim": 32}, "glm": {"head_dim": 32}, "glm4": {"head_dim": 32}}.items()}


def make(base, changes, out):
    """A model with random weights that float16 holds exactly."""
    import torch, transformers

    c = json.load(open(os.path.join(here, base, "config.json")))
    c.update(changes)
    os.makedirs(out)
    json.dump(c, open(os.path.join(out, "config.json"), "w"))
    torch.manual_seed(5)
    m = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(out), dtype=torch.float32)
    with torch.no_grad():
        for n, p in m.named_parameters():
            r = torch.randn_like(p)
            p.copy_(((1 + 0.1 * r) if p.dim() == 1 and "norm" in n or "ln_" in n and "weight" in n else 0.2 * r).half().float())
    m.save_pretrained(out)
    return out


def export(trireme, d, to, out):
    p = subprocess.run([trireme, "ckpt", "export", d, "--to", to, "--output", out, "--json"], capture_output=True, text=True)
    return (json.loads(p.stdout.splitlines()[-1]), glob.glob(out + "/*.gguf")[0]) if p.returncode == 0 else (None, p.stderr.strip())


def check_quantised(trireme, base, changes, types, work):
    """For each type: bytes of llama.cpp's own tool, values of gguf's decoder are those our proof used, logits near."""
    import gguf, llama_cpp

    d = make(base, changes, os.path.join(work, base + "-wide"))
    _, plain = export(trireme, d, "gguf:f16", d + "-f16")
    ids = np.random.default_rng(4).integers(3, 48, 30)
    bad = 0
    for to in types:
        ftype = NAMES[to]
        said, file = export(trireme, d, "gguf:" + to, d + "-" + to)
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = ftype
        theirs = os.path.join(work, "theirs.gguf")
        if llama_cpp.llama_model_quantize(plain.encode(), theirs.encode(), ctypes.byref(params)) != 0:
            raise SystemExit("llama_model_quantize failed")
        a = {t.name: t for t in gguf.GGUFReader(file).tensors}
        b = {t.name: t for t in gguf.GGUFReader(theirs).tensors}
        assert a.keys() == b.keys(), sorted(a.keys() ^ b.keys())
        differ = [n for n in a if a[n].tensor_type != b[n].tensor_type or not np.array_equal(a[n].data, b[n].data)]
        kinds = sorted({t.tensor_type.name for t in a.values()})
        diff = np.abs(logits_of(file, ids) - logits_of(plain, ids)).max()
        # llama.cpp rounds activations to 8 bits before products with quantised weights: about as much again.
        good = not differ and diff <= 4 * said["max_logit_diff"] + 0.05
        bad += not good
        print(f"{base:20s} {to:7s} {'ok   ' if good else 'WRONG'} {len(a)} tensors {' '.join(kinds)}, differ {differ[:3]}, "
              f"llama.cpp {diff:.3g}, our forward {said['max_logit_diff']:.3g}, kl {said['kl']:.3g}")
        shutil.rmtree(os.path.dirname(file))
    return bad


def check_tokenizers(trireme, work):
    """llama.cpp's ids of the golden texts, where there is a name for the tokenizer."""
    import llama_cpp

    bad = 0
    texts = json.load(open(os.path.join(here, "tokenizers", "texts.json")))
    for d in sorted(glob.glob(os.path.join(here, "tokenizers", "*", "tokenizer.json"))):
        d = os.path.dirname(d)
        name = os.path.basename(d)
        cases = json.load(open(os.path.join(d, "cases.json")))
        t = json.load(open(os.path.join(d, "tokenizer.json")))
        most = max([max(t["model"]["vocab"].values() if isinstance(t["model"]["vocab"], dict) else [len(t["model"]["vocab"])])]
                   + [a["id"] for a in t["added_tokens"]])
        m = make("llama_mha", {"vocab_size": most + 1, "num_hidden_layers": 1, "eos_token_id": None, "bos_token_id": None},
                 os.path.join(work, "tok-" + name))
        shutil.copy(os.path.join(d, "tokenizer.json"), m)
        said, file = export(trireme, m, "gguf:f16", m + ".out")
        if not said:
            print(f"tokenizer {name:10s} refused: {file.splitlines()[-1][:110]}")
            continue
        v = llama_cpp.Llama(file, vocab_only=True, verbose=False)
        wrong = [(t[:40], g[:12], c[0][:12]) for t, c in zip(texts, cases)
                 if t and (g := v.tokenize(t.encode("utf-8", "surrogatepass"), add_bos=False, special=True)) != c[0]]
        bad += len(wrong) > 0 and not said["notes"] # notes say which texts differ
        print(f"tokenizer {name:10s} {len(cases) - len(wrong)} of {len(cases)} texts have the same ids {wrong[:1]}")
    return bad


def main():
    if "--write" in sys.argv:
        return record()
    trireme, only = os.path.abspath(sys.argv[1]), sys.argv[2:]
    work, failed = tempfile.mkdtemp(), 0
    dirs = [os.path.dirname(d) for d in sorted(glob.glob(os.path.join(here, "*", "config.json")))]
    dirs = [d for d in dirs if os.path.exists(os.path.join(d, "model.safetensors"))]
    dirs += [make(b, c, os.path.join(work, b + "+")) for b, c in VARIANTS.items() if not only or b in only]
    for d in dirs:
        name = os.path.basename(d)
        if only and name.rstrip("+") not in only:
            continue
        said, file = export(trireme, d, "gguf:f16", os.path.join(work, name + ".out"))
        if not said:
            print(f"{name:20s} refused: {file.splitlines()[-1][:150]}")
            continue
        import gguf

        r = gguf.GGUFReader(file)
        context = next(int(f.parts[-1][0]) for k, f in r.fields.items() if k.endswith(".context_length"))
        vocab = json.load(open(os.path.join(d, "config.json")))["vocab_size"]
        ids = np.random.default_rng(3).integers(3, vocab, min(context, 48))
        got, want = logits_of(file, ids), torch_logits(d, ids)
        diff, span = np.abs(got - want).max(), np.abs(want).max()
        # llama.cpp rounds activations to F16 before every product with F16 weights, and has tables of exp and gelu in
        # F16: 2^-11 for each of some tens of roundings. A wrong permutation or scale moves logits by about `span`.
        bound = 4 * said["max_logit_diff"] + 1e-2 * span
        good = diff <= bound
        failed += not good
        print(f"{name:20s} {'ok    ' if good else 'WRONG '} max |logit| {span:.3g}  llama.cpp - torch {diff:.2g}  "
              f"our forward {said['max_logit_diff']:.2g}  kl {said['kl']:.2g}  {said['notes'].strip()[:60]}")
    if not only or "tokenizers" in only:
        failed += check_tokenizers(trireme, work)
    for base, changes in {**WIDE, **FAMILIES}.items():
        if not only or base in only:
            failed += check_quantised(trireme, base, changes, [n for n in NAMES if n != "f16"] if base in WIDE else ["q8_0", "q4_0"], work)
    shutil.rmtree(work)
    sys.exit(failed > 0)


main()
