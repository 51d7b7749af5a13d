#!/usr/bin/env python3
"""Random configurations of every family against transformers: logits, loss, gradients, ten AdamW steps and generation.

    random_families.py build/release/train_golden [--n 5] [--seed 1] [family ...]      needs torch and transformers

Draws n configurations of each family (tied or not, grouped heads, biases, windows, kinds of rope), makes a golden case of each in a temporary
directory as make_golden.py does, and runs the test of the golden cases on them. A configuration that transformers refuses is drawn again.
"""
import argparse
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import make_golden as g
import transformers as t


def rope(rng, head_dim, theta=1000.0):
    kind = rng.choice(["default", "default", "linear", "yarn", "llama3", "dynamic"])
    p = {"rope_type": kind, "rope_theta": theta}
    if kind in ("linear", "dynamic"):
        p |= {"factor": 3.0}
    if kind == "yarn":
        p |= {"factor": 4.0, "beta_fast": 4.0, "original_max_position_embeddings": 16}
    if kind == "llama3":
        p |= g.LLAMA3
    return p


def kinds(rng, n):
    return [rng.choice(["full_attention", "sliding_attention"]) for _ in range(n)]


def base(rng):
    kv = rng.choice([1, 2, 4])
    heads = kv * rng.choice([1, 2])
    head_dim = rng.choice([4, 8, 12])
    return dict(hidden_size=heads * head_dim, num_attention_heads=heads, num_key_value_heads=kv, intermediate_size=rng.choice([20, 24]),
                num_hidden_layers=rng.choice([1, 2, 3, 5]), tie_word_embeddings=rng.random() < 0.5, pad_token_id=0,
                rms_norm_eps=rng.choice([1e-6, 1e-5, 1e-2]), hidden_act=rng.choice(["silu", "gelu", "relu", "gelu_pytorch_tanh"]))


def draw(family, rng):
    c = base(rng)
    head_dim, layers, flag = c["hidden_size"] // c["num_attention_heads"], c["num_hidden_layers"], lambda: rng.random() < 0.5
    bias, windows = dict(attention_bias=flag()), dict(sliding_window=rng.choice([3, 5, 40]), layer_types=kinds(rng, layers))
    nested = lambda: {"full_attention": rope(rng, head_dim), "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}
    if family == "llama":
        return g.small(t.LlamaConfig, **c, **bias, mlp_bias=flag(), rope_parameters=rope(rng, head_dim))
    if family == "mistral":
        return g.small(t.MistralConfig, **c, sliding_window=rng.choice([None, 4]), rope_parameters=rope(rng, head_dim))
    if family == "ministral":
        return g.small(t.MinistralConfig, **c, **(windows if flag() else dict(sliding_window=4)), rope_parameters=rope(rng, head_dim))
    if family == "qwen2":
        return g.small(t.Qwen2Config, **c, use_sliding_window=flag(), sliding_window=5, max_window_layers=rng.choice([0, 1, 9]))
    if family == "qwen3":
        return g.small(t.Qwen3Config, **c, **bias, head_dim=rng.choice([4, 8]), use_sliding_window=flag(), sliding_window=5,
                       max_window_layers=rng.choice([0, 1, 9]))
    if family == "gemma":
        return g.small(t.GemmaConfig, **c, **bias, head_dim=rng.choice([4, 8]), rope_parameters=rope(rng, 8))
    if family in ("gemma2", "gemma3_text"):
        c["hidden_activation"] = c.pop("hidden_act")
        caps = dict(attn_logit_softcapping=rng.choice([None, 2.0]), final_logit_softcapping=rng.choice([None, 4.0]))
        cls = t.Gemma2Config if family == "gemma2" else t.Gemma3TextConfig
        r = {} if family == "gemma2" else dict(rope_parameters=nested())
        return g.small(cls, **c, **bias, **windows, **caps, **r, head_dim=rng.choice([4, 8]), query_pre_attn_scalar=rng.choice([4, 11]))
    if family == "granite":
        return g.small(t.GraniteConfig, **c, **bias, mlp_bias=flag(), attention_multiplier=rng.choice([1.0, 0.3]), rope_parameters=rope(rng, head_dim),
                       embedding_multiplier=rng.choice([1.0, 2.5]), residual_multiplier=rng.choice([1.0, 0.3]), logits_scaling=rng.choice([1.0, 3.0]))
    if family == "smollm3":
        more = rng.choice([dict(no_rope_layer_interval=rng.choice([1, 2, 4])), dict(no_rope_layers=[rng.choice([0, 1]) for _ in range(layers)])])
        windows = rng.choice([windows, dict(sliding_window=4), {}])
        return g.small(t.SmolLM3Config, **c, **bias, **more, **windows, mlp_bias=flag(), use_sliding_window=flag())
    if family == "olmo2":
        return g.small(t.Olmo2Config, **c, **bias, rope_parameters=rope(rng, head_dim))
    if family in ("gpt_neox", "falcon", "stablelm", "starcoder2", "cohere", "cohere2", "glm", "glm4"):
        return draw_other(family, rng, c)
    if family == "olmo3":
        return g.small(t.Olmo3Config, **c, **bias, **(windows if flag() else dict(sliding_window=4)), rope_parameters=nested())
    assert family == "phi3", family
    part = rng.choice([1.0, 0.5])
    n, original = int(head_dim * part) // 2, rng.choice([4, 64])
    p = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": part}
    if flag():
        p |= {"rope_type": "longrope", "short_factor": [1.0 + 0.2 * i for i in range(n)], "long_factor": [2.0 + i for i in range(n)]}
    return g.small(t.Phi3Config, **c, sliding_window=rng.choice([None, 5]), original_max_position_embeddings=original, rope_parameters=p)


def draw_other(family, rng, c):
    """Families with layer norms, joined matrices or a rope of their own."""
    heads, kv, layers, flag = c["num_attention_heads"], c["num_key_value_heads"], c["num_hidden_layers"], lambda: rng.random() < 0.5
    head_dim, eps = c["hidden_size"] // heads, c.pop("rms_norm_eps")
    part = dict(rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": rng.choice([0.5, 1.0])})
    if family == "gpt_neox":
        c.pop("num_key_value_heads")
        return t.GPTNeoXConfig(**c, **part, vocab_size=48, max_position_embeddings=64, bos_token_id=0, eos_token_id=2, layer_norm_eps=eps,
                               use_parallel_residual=flag(), attention_bias=flag())
    if family == "falcon":
        shape = rng.choice([dict(new_decoder_architecture=True, num_kv_heads=kv, num_ln_in_parallel_attn=rng.choice([None, 1, 2])),
                            dict(multi_query=True, parallel_attn=flag()), dict(multi_query=False, parallel_attn=flag())])
        return t.FalconConfig(vocab_size=48, hidden_size=c["hidden_size"], num_hidden_layers=layers, num_attention_heads=heads, **shape,
                              tie_word_embeddings=c["tie_word_embeddings"], activation=rng.choice(["gelu", "relu"]), bias=flag(),
                              ffn_hidden_size=c["intermediate_size"], layer_norm_epsilon=eps, max_position_embeddings=64,
                              rope_parameters=rope(rng, head_dim), bos_token_id=0, eos_token_id=2)
    if family == "stablelm":
        return g.small(t.StableLmConfig, **c, **part, layer_norm_eps=eps, use_qkv_bias=flag(), use_parallel_residual=flag())
    if family == "starcoder2":
        return g.small(t.Starcoder2Config, **c, norm_epsilon=eps, use_bias=flag(), sliding_window=rng.choice([None, 5]),
                       rope_parameters=rope(rng, head_dim))
    if family in ("glm", "glm4"):
        return g.small(t.GlmConfig if family == "glm" else t.Glm4Config, **c, **part, rms_norm_eps=eps, head_dim=rng.choice([4, 8]),
                       attention_bias=flag())
    more = dict(layer_norm_eps=eps, logit_scale=rng.choice([0.25, 1.0, 1.5]), attention_bias=flag(), rope_parameters=rope(rng, head_dim))
    if family == "cohere":
        return g.small(t.CohereConfig, **c, **more)
    return g.small(t.Cohere2Config, **c, **more, head_dim=rng.choice([head_dim, 8]), sliding_window=rng.choice([3, 5, 40]), layer_types=kinds(rng, layers))


NAMES = {"gpt_neox": {"lm_head.weight": "embed_out.weight"}}  # as make_golden.py has them
FAMILIES = ("llama", "mistral", "ministral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "granite", "smollm3", "olmo2", "olmo3", "phi3", "gpt_neox",
            "falcon", "stablelm", "starcoder2", "cohere", "cohere2", "glm", "glm4")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("test")
    parser.add_argument("--n", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("families", nargs="*", default=FAMILIES)
    args = parser.parse_args()
    t.utils.logging.disable_progress_bar()
    t.utils.logging.set_verbosity_error()
    g.torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as root:
        for family in args.families:
            rng, made = random.Random(f"{family} {args.seed}"), 0
            while made < args.n:
                seed = rng.randrange(1 << 30)
                documents = rng.choice([[[20], [20]], [[9, 11], [20]], [[5, 6, 9], [12, 8]]])
                try:
                    config = draw(family, random.Random(seed))
                except (KeyError, ValueError) as e:
                    print(f"{family}: drawn again: {type(e).__name__}: {str(e)[:100]}")
                    continue
                g.make_case(pathlib.Path(root), f"{family}_{made}", dict(config=config, documents=documents, names=NAMES.get(family, {})), seed)
                made += 1
        return subprocess.run([args.test], env=os.environ | {"TR_GOLDEN": root}).returncode


if __name__ == "__main__":
    sys.exit(main())
