"""cases.py - what record.py runs: golden models, layouts, recompute modes.

A case is one model, one layout and one recompute mode. Every run makes 10 steps of 8 rows; a layout says how many ranks share
the rows and how many rows one micro-batch has. A layout that a model cannot have is recorded too: with its message.
"""
import collections
import re

TRAIN_BATCH = 8
DEEP_LAYERS = 4  # pipelines of four stages need four layers; no golden model has them

# Products in 8-bit floats need sizes that 16 divides, and no golden model has them: this model is made here, with random weights.
WIDE = "llama_wide"
WIDE_CONFIG = {
    "model_type": "llama", "vocab_size": 48, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "hidden_act": "silu", "rms_norm_eps": 1e-05, "max_position_embeddings": 64,
    "rope_theta": 10000.0, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 2,
}

Layout = collections.namedtuple("Layout", "name ranks rows options env is_deep")
Case = collections.namedtuple("Case", "name model layout recompute")

LAYOUTS = []


def layout(name, ranks, rows, options="", env=None, is_deep=False):
    LAYOUTS.append(Layout(name, ranks, rows, options.split(), env or {}, is_deep))


def is_fp8(l):
    return "--fp8" in l.options


# One rank.
layout("single", 1, 8)
layout("acc", 1, 2)
layout("no-clip", 1, 4, "--max_grad_norm 0")
layout("dropout", 1, 4, "--dropout 0.1")
layout("lion", 1, 4, "--optim lion")
layout("sgd", 1, 4, "--optim sgd --momentum 0.9")
layout("grad-norms", 1, 4, "--grad_norm_steps 5")

# Data parallel, ZeRO, hybrid.
layout("dp2", 2, 4)
layout("dp2-acc", 2, 2)
layout("dp4", 4, 2)
for zero in (1, 2, 3):
    layout(f"zero{zero}", 2, 4, f"--zero {zero}")
    layout(f"zero{zero}-acc", 2, 2, f"--zero {zero}")
    layout(f"zero{zero}-dp4", 4, 1, f"--zero {zero}")
for zero in (2, 3):
    layout(f"zero{zero}-last", 2, 4, f"--zero {zero} --sync last")
    layout(f"zero{zero}-acc-last", 2, 2, f"--zero {zero} --sync last")
for zero in (1, 2, 3):
    layout(f"hybrid-zero{zero}", 4, 2, f"--zero {zero} --hybrid_shard 2")
layout("hybrid-zero3-acc", 4, 1, "--zero 3 --hybrid_shard 2")
layout("hybrid-zero3-acc-last", 4, 1, "--zero 3 --hybrid_shard 2 --sync last")
layout("lion-zero2", 2, 2, "--optim lion --zero 2")
layout("sgd-zero3", 2, 4, "--optim sgd --momentum 0.9 --zero 3")
layout("dp2-sdc", 2, 2, "--sdc_check")
layout("zero2-sdc", 2, 2, "--sdc_check --zero 2")
layout("dp2-replicas", 2, 4, "--replica_check_steps 3")
layout("no-clip-zero3", 2, 4, "--max_grad_norm 0 --zero 3")

# Tensor, sequence and context parallel.
layout("tp2", 2, 4, "--tp 2")
layout("tp2-sp", 2, 4, "--tp 2 --sp")
layout("tp2-sp-dropout", 2, 4, "--tp 2 --sp --dropout 0.1")
layout("tp4", 4, 4, "--tp 4")
layout("tp4-sp", 4, 4, "--tp 4 --sp")
layout("cp2-ulysses", 2, 4, "--cp 2 --cp_mode ulysses")
layout("cp2-ring", 2, 4, "--cp 2 --cp_mode ring")
layout("cp4-ring", 4, 4, "--cp 4 --cp_mode ring")

# Pipelines.
for schedule in ("gpipe", "1f1b", "zb", "interleaved --pp_chunks 2"):
    layout("pp2-" + schedule.split()[0], 2, 2, "--pp 2 --pp_schedule " + schedule)
for schedule in ("gpipe", "1f1b", "zb"):
    layout("pp4-" + schedule, 4, 1, "--pp 4 --pp_schedule " + schedule, is_deep=True)
layout("pp2-interleaved-deep", 2, 2, "--pp 2 --pp_schedule interleaved --pp_chunks 2", is_deep=True)
layout("pp2-dropout", 2, 2, "--pp 2 --dropout 0.1")
layout("pp2-lion-zb", 2, 2, "--pp 2 --pp_schedule zb --optim lion")

# Combinations.
layout("dp2-tp2", 4, 2, "--tp 2")
layout("tp2-sp-zero1", 4, 2, "--tp 2 --sp --zero 1")
layout("tp2-zero2", 4, 2, "--tp 2 --zero 2")
layout("tp2-sp-zero3", 4, 2, "--tp 2 --sp --zero 3")
layout("tp2-lion-zero1", 4, 2, "--tp 2 --zero 1 --optim lion")
layout("pp2-dp2", 4, 2, "--pp 2")
layout("pp2-zb-zero1", 4, 2, "--pp 2 --pp_schedule zb --zero 1")
layout("pp2-interleaved-zero2", 4, 1, "--pp 2 --pp_schedule interleaved --pp_chunks 2 --zero 2", is_deep=True)
layout("pp2-zero2", 4, 1, "--pp 2 --zero 2")
layout("pp2-zero3", 4, 1, "--pp 2 --zero 3")
layout("pp2-zb-zero2-last", 4, 1, "--pp 2 --pp_schedule zb --zero 2 --sync last")
layout("pp2-tp2", 4, 2, "--pp 2 --tp 2")
layout("pp2-tp2-zb-sp", 4, 2, "--pp 2 --tp 2 --pp_schedule zb --sp")
layout("cp2-ulysses-zero3", 4, 2, "--cp 2 --cp_mode ulysses --zero 3")
layout("cp2-ring-zero2", 4, 2, "--cp 2 --cp_mode ring --zero 2")
layout("cp2-ring-tp2-sp", 4, 4, "--cp 2 --tp 2 --sp")
layout("cp2-ulysses-tp2-sp", 4, 4, "--cp 2 --cp_mode ulysses --tp 2 --sp")
layout("pp2-cp2-ulysses", 4, 2, "--pp 2 --cp 2 --cp_mode ulysses")

# The same bits on any layout.
ordered = "--reproducible layout "
layout("ordered-single", 1, 1, ordered)
layout("ordered-acc4", 1, 2, ordered)
layout("ordered-dp2", 2, 1, ordered)
layout("ordered-dp4", 4, 1, ordered)
for zero in (1, 2, 3):
    layout(f"ordered-zero{zero}", 2, 1, ordered + f"--zero {zero}")
layout("ordered-zero3-dp4", 4, 1, ordered + "--zero 3")
layout("ordered-hybrid", 4, 1, ordered + "--zero 2 --hybrid_shard 2")
layout("ordered-pp2", 2, 1, ordered + "--pp 2")
layout("ordered-pp2-interleaved", 2, 1, ordered + "--pp 2 --pp_schedule interleaved --pp_chunks 2", is_deep=True)
layout("ordered-pp4", 4, 1, ordered + "--pp 4", is_deep=True)
layout("ordered-pp2-zb-zero1", 4, 1, ordered + "--pp 2 --pp_schedule zb --zero 1")

# Precisions. The failpoint makes a gradient infinite in one of the first steps, so that float16 leaves that update out.
skip = {"TR_FAIL": "exec.lose_gradient:error:10:0"}
layout("fp16", 1, 4, "--dtype float16")
layout("fp16-skip", 1, 4, "--dtype float16", skip)
layout("fp16-skip-zero3", 2, 4, "--dtype float16 --zero 3", skip)
layout("fp16-tp2-sp", 2, 4, "--dtype float16 --tp 2 --sp")
layout("fp16-skip-pp2-zero1", 4, 2, "--dtype float16 --pp 2 --zero 1", skip)
layout("bf16", 1, 4, "--dtype bfloat16")
layout("bf16-state", 1, 4, "--dtype bfloat16 --master_dtype bfloat16 --moment_dtype bfloat16 --grad_dtype bfloat16")
layout("bf16-moments-zero3", 2, 4, "--dtype bfloat16 --moment_dtype bfloat16 --zero 3")
layout("bf16-state-zero2", 2, 2, "--dtype bfloat16 --master_dtype bfloat16 --moment_dtype bfloat16 --grad_dtype bfloat16 --zero 2")
layout("bf16-tp2-sp", 2, 4, "--dtype bfloat16 --tp 2 --sp")
layout("bf16-cp2-ring", 2, 4, "--dtype bfloat16 --cp 2")
layout("bf16-pp2-zb-zero1", 4, 2, "--dtype bfloat16 --pp 2 --pp_schedule zb --zero 1")
layout("reduce-bf16-dp2", 2, 2, "--reduce_dtype bfloat16")
layout("reduce-bf16-zero2", 2, 2, "--reduce_dtype bfloat16 --zero 2")
layout("reduce-bf16-zero3", 2, 4, "--reduce_dtype bfloat16 --zero 3 --dtype bfloat16")
layout("fp8", 1, 4, "--fp8")
layout("fp8-delayed", 1, 4, "--fp8 --fp8_scaling delayed --fp8_gradient e5m2")
layout("fp8-delayed-zero2", 2, 2, "--fp8 --fp8_scaling delayed --zero 2")
layout("fp8-delayed-pp2", 2, 2, "--fp8 --fp8_scaling delayed --pp 2")
layout("fp8-delayed-tp2", 2, 4, "--fp8 --fp8_scaling delayed --tp 2")
layout("fp8-tp2-sp", 2, 4, "--fp8 --tp 2 --sp --dtype bfloat16")
layout("fp8-delayed-zero3", 2, 4, "--fp8 --fp8_scaling delayed --zero 3 --dtype bfloat16")
layout("fp8-delayed-cp2", 2, 4, "--fp8 --fp8_scaling delayed --cp 2")
layout("fp8-delayed-ordered", 2, 2, ordered + "--fp8 --fp8_scaling delayed")

WHOLE = ("llama_gqa_tied", "gpt2_tied", "qwen3")  # these models have every layout with every recompute mode
RECOMPUTE = ("none", "op", "block")
# The fourth mode, auto, recomputes only what a budget leaves no room for. Some of these budgets are too small for some models.
BUDGETS = [Layout(f"budget-{n}{name}", ranks, rows, ["--memory_budget", str(n), *options], {}, False)
           for n in (8820000, 8860000, 8900000, 8950000, 9000000, 9040000)
           for name, ranks, rows, options in (("", 1, 8, []), ("-zero2", 2, 8, ["--zero", "2", "--train_batch_size", "16"]))]
ROTATING = 4  # layouts, beside the single rank, of each other model

# The part that ctest runs: one case for each mechanism.
QUICK = (
    "llama_gqa_tied.single.none",
    "llama_gqa_tied.zero3-acc.block",
    "llama_gqa_tied.hybrid-zero3-acc.none",
    "llama_gqa_tied.pp2-1f1b.none",
    "llama_gqa_tied.ordered-pp2-zb-zero1.none",
    "llama_gqa_tied.bf16-state-zero2.none",
    "gpt2_tied.tp2-sp-dropout.op",
    "gpt2_tied.cp2-ring.none",
    "llama_wide.fp8-delayed-zero2.none",
    "gpt2_tied.fp16-skip-zero3.none",
    "qwen3.pp2-tp2-zb-sp.none",
    "qwen3.tp2-lion-zero1.none",
    "gemma2.single.none",
    "opt_post_norm.single.none",
)


def all_cases(models):
    """Every case of these golden models and of the wide one, in one fixed order."""
    by_name = {}

    def add(model, l, recompute):
        case = Case(f"{model}.{l.name}.{recompute}", model, l, recompute)
        by_name.setdefault(case.name, case)

    turn = 0
    for model in models:
        add(model, LAYOUTS[0], "none")
        if model in WHOLE:
            for recompute in RECOMPUTE:
                for l in LAYOUTS:
                    add(model, l, recompute)
            for l in BUDGETS:
                add(model, l, "auto")
            continue
        for recompute in ("op", "block"):
            add(model, LAYOUTS[0], recompute)
        for _ in range(ROTATING):
            add(model, LAYOUTS[1 + turn % (len(LAYOUTS) - 1)], RECOMPUTE[turn % len(RECOMPUTE)])
            turn += 5  # neighbours in the list are alike
    for recompute in RECOMPUTE:
        for l in filter(is_fp8, LAYOUTS):
            add(WIDE, l, recompute)
    return list(by_name.values())


def select(cases, only, is_quick):
    return [c for c in cases if (not is_quick or c.name in QUICK) and (not only or re.search(only, c.name))]
