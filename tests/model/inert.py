"""inert.py - keys of config.json that are passed over, checked against transformers: with odd values of the key the logits of a tiny
model of the family keep their bits.

    inert.py src/model/config.c      needs torch and transformers; exit 77 where they are not here

The keys are read from the table inert_of of the source. The check can fail: a key that a network reads (control) must change the bits.
"""
import re
import sys

FAMILIES = {"gpt2": "GPT2Config", "opt": "OPTConfig", "llama": "LlamaConfig", "mistral": "MistralConfig", "ministral": "MinistralConfig", "qwen2": "Qwen2Config",
            "qwen3": "Qwen3Config", "gemma": "GemmaConfig", "granite": "GraniteConfig", "smollm3": "SmolLM3Config", "phi3": "Phi3Config", "olmo2": "Olmo2Config",
            "olmo3": "Olmo3Config",
            "gemma2": "Gemma2Config", "gemma3_text": "Gemma3TextConfig"}
VALUES = [True, False, 3, "x", None]
FAMILIES |= {"gpt_neox": "GPTNeoXConfig", "falcon": "FalconConfig", "stablelm": "StableLmConfig", "starcoder2": "Starcoder2Config",
             "cohere": "CohereConfig", "cohere2": "Cohere2Config", "glm": "GlmConfig", "glm4": "Glm4Config"}
CONTROL = {"gpt2": ("scale_attn_weights", False), "opt": ("do_layer_norm_before", False), "falcon": ("activation", "relu")}


def table(path):
    text = open(path).read()
    body = re.search(r"inert_of\[\] = \{(.*?)\n\};", text, re.S).group(1)
    rows = re.findall(r'\{ "([^"]*)",\s*((?:"[^"]*"\s*)+)\}', body)
    return {name: " ".join(re.findall(r'"([^"]*)"', words)).split() for name, words in rows}


def logits(family, extra):
    import torch
    import transformers as t
    cls = getattr(t, FAMILIES[family])
    small = dict(vocab_size=48, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
                 max_position_embeddings=64, pad_token_id=0, bos_token_id=0, eos_token_id=0)
    if family == "gpt2":
        small = dict(vocab_size=48, n_positions=32, n_embd=16, n_head=2, n_layer=2, bos_token_id=0, eos_token_id=0)
    if family == "opt":
        small |= dict(ffn_dim=24, word_embed_proj_dim=16, max_position_embeddings=32)
    if family.startswith("gemma") or family == "smollm3" or family in ("qwen3", "glm", "glm4", "ministral"):
        small |= dict(head_dim=8)
    config = cls(**{**small, **extra})
    config._attn_implementation = "eager"
    torch.manual_seed(1)
    model = t.AutoModelForCausalLM.from_config(config).eval()
    g = torch.Generator().manual_seed(2)
    for p in model.parameters():
        p.data = 0.3 * torch.randn(p.shape, generator=g)
    with torch.no_grad():
        return model(torch.arange(3, 15)[None]).logits


def main():
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError:
        print("torch and transformers are not here: inert keys were not checked")
        return 77
    rows = table(sys.argv[1])
    n = bad = 0
    for family in FAMILIES:
        base = logits(family, {})
        key, value = CONTROL.get(family, ("hidden_activation" if family in ("gemma2", "gemma3_text") else "hidden_act", "relu"))
        if torch.equal(base, logits(family, {key: value})):
            print(f"{family}: {key} changed nothing: this check is blind")
            bad += 1
        for key in rows["*"] + rows.get(family, []):
            for value in VALUES:
                n += 1
                try:
                    same = torch.equal(base, logits(family, {key: value}))
                except Exception as e:  # a value that transformers refuses is not passed over in silence by it
                    print(f"{family}: {key} = {value!r}: {type(e).__name__}: {str(e)[:100]}")
                    bad += 1
                    break
                if not same:
                    print(f"{family}: {key} = {value!r} changes the logits")
                    bad += 1
                    break
    print(f"{n} cases, {bad} wrong")
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
