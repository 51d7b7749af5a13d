#!/usr/bin/env python3
"""Runs DPOTrainer, and CPOTrainer for SimPO and CPO, beside Trireme, loss by loss and layout by layout, with the pairs of each step in Trireme's order.

    TRIREME=build/release/trireme python3 tests/golden/check_trl_dpo.py [CASE...]
    TRIREME=build/release/trireme python3 tests/golden/check_trl_dpo.py --random N SEED

Needs trl, peft and transformers. Every number of a step that both report is compared; the bound is that of tests/cli/test_preference.sh.
make_trl_dpo.py records one such curve for the test that runs without trl. The differences that docs/guide/preference.md lists (sft, rpo_alpha,
label_smoothing with sigmoid) are not compared.
"""
import json, os, random, re, subprocess, sys, tempfile, warnings

warnings.filterwarnings("ignore")
import torch, transformers
from datasets import Dataset
from torch.utils.data import SequentialSampler
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer

trireme = os.path.realpath(os.environ["TRIREME"])
STEPS, BATCH, BOUND = 12, 4, 5e-5
NAMES = {"loss": "loss", "grad_norm": "grad_norm", "rewards/chosen": "rewards_chosen", "rewards/rejected": "rewards_rejected",
         "rewards/accuracies": "rewards_accuracy", "logps/chosen": "logps_chosen", "logps/rejected": "logps_rejected"}
# name: options of Trireme, of DPOConfig, and what else: ranks, lora
CASES = {loss: (["--loss_type", loss], {"loss_type": [loss]}, {}) for loss in
         "sigmoid hinge ipo sigmoid_norm nca_pair bco_pair sppo_hard apo_zero apo_down discopop".split()}
CASES |= {loss: (["--loss_type", loss, "--label_smoothing", "0.15"], {"loss_type": [loss], "label_smoothing": 0.15}, {}) for loss in ("robust", "exo_pair")}
CASES |= {f: (["--f_divergence_type", f], {"f_divergence_type": f}, {}) for f in ("forward_kl", "js_divergence")}
CASES |= {
    "alpha": (["--f_divergence_type", "alpha_divergence", "--f_alpha_divergence_coef", "0.6"],
              {"f_divergence_type": "alpha_divergence", "f_alpha_divergence_coef": 0.6}, {}),
    "beta": (["--beta", "0.7"], {"beta": 0.7}, {}),
    "hinge-js": (["--loss_type", "hinge", "--f_divergence_type", "js_divergence"], {"loss_type": ["hinge"], "f_divergence_type": "js_divergence"}, {}),
    "list": (["--loss_type", "sigmoid:0.8,bco_pair:0.2"], {"loss_type": ["sigmoid", "bco_pair"], "loss_weights": [0.8, 0.2]}, {}),
    "list-3": (["--loss_type", "ipo:0.5,exo_pair,hinge:2", "--label_smoothing", "0.1"],
               {"loss_type": ["ipo", "exo_pair", "hinge"], "loss_weights": [0.5, 1.0, 2.0], "label_smoothing": 0.1}, {}),
    "tau": (["--loss_type", "discopop", "--discopop_tau", "0.2"], {"loss_type": ["discopop"], "discopop_tau": 0.2}, {}),
    "accumulation": (["--per_device_train_batch_size", "1"], {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}, {}),
    "cosine": (["--lr_scheduler_type", "cosine", "--warmup_steps", "3", "--weight_decay", "0.1", "--max_grad_norm", "0.5", "--adam_beta2", "0.95"],
               {"lr_scheduler_type": "cosine", "warmup_steps": 3, "weight_decay": 0.1, "max_grad_norm": 0.5, "adam_beta2": 0.95}, {}),
    "cut": (["--sequence_length", "64"], {"max_length": 32}, {"long": True}),
    "lora": ([], {}, {"lora": True}),
    "zero2": (["--zero", "2", "--per_device_train_batch_size", "1"], {}, {"ranks": 2}),
    "pp2": (["--pp", "2", "--per_device_train_batch_size", "2"], {}, {"ranks": 2}),
    "tp2-ipo": (["--tp", "2", "--loss_type", "ipo"], {"loss_type": ["ipo"]}, {"ranks": 2}),
    "simpo": (["--task", "simpo"], {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 0.5}, {"trainer": "cpo"}),
    "simpo-smooth": (["--task", "simpo", "--beta", "1.3", "--simpo_gamma", "1.1", "--label_smoothing", "0.1", "--zero", "3", "--per_device_train_batch_size", "2"],
                     {"loss_type": "simpo", "beta": 1.3, "simpo_gamma": 1.1, "label_smoothing": 0.1}, {"trainer": "cpo", "ranks": 2}),
    "cpo": (["--task", "cpo"], {"loss_type": "sigmoid"}, {"trainer": "cpo"}),
    "cpo-smooth": (["--task", "cpo", "--beta", "0.03", "--label_smoothing", "0.2", "--pp", "2", "--per_device_train_batch_size", "2"],
                   {"loss_type": "sigmoid", "beta": 0.03, "label_smoothing": 0.2}, {"trainer": "cpo", "ranks": 2}),
    "ld": (["--ld_alpha", "0.4"], {"ld_alpha": 0.4}, {}),
    "ld-ipo": (["--ld_alpha", "0", "--loss_type", "ipo", "--cp", "2"], {"ld_alpha": 0.0, "loss_type": ["ipo"]}, {"ranks": 2}),
    "ld-cut": (["--sequence_length", "64", "--ld_alpha", "0.5"], {"max_length": 32, "ld_alpha": 0.5}, {"long": True}),
    "wpo": (["--use_weighting"], {"use_weighting": True}, {}),
    "wpo-lora": (["--use_weighting", "--ld_alpha", "0.3"], {"use_weighting": True, "ld_alpha": 0.3}, {"lora": True}),
    "wpo-list": (["--use_weighting", "--loss_type", "sigmoid:0.8,bco_pair:0.2", "--tp", "2"],
                 {"use_weighting": True, "loss_type": ["sigmoid", "bco_pair"], "loss_weights": [0.8, 0.2]}, {"ranks": 2}),
    "wpo-pp": (["--use_weighting", "--ld_alpha", "0.6", "--pp", "2", "--per_device_train_batch_size", "2"], {"use_weighting": True, "ld_alpha": 0.6}, {"ranks": 2}),
    "aot": (["--loss_type", "aot", "--label_smoothing", "0.1"], {"loss_type": ["aot"], "label_smoothing": 0.1}, {}),
    "aot-accumulation": (["--loss_type", "aot", "--per_device_train_batch_size", "1", "--ld_alpha", "0.5"], {"loss_type": ["aot"], "ld_alpha": 0.5}, {}),
    "aot-list": (["--loss_type", "aot:0.7,sigmoid:0.3", "--tp", "2"], {"loss_type": ["aot", "sigmoid"], "loss_weights": [0.7, 0.3]}, {"ranks": 2}),
    "aot_unpaired": (["--loss_type", "aot_unpaired", "--beta", "0.5"], {"loss_type": ["aot_unpaired"], "beta": 0.5}, {}),
    "aot_unpaired-zero3": (["--loss_type", "aot_unpaired", "--zero", "3", "--per_device_train_batch_size", "1", "--label_smoothing", "0.2"],
                           {"loss_type": ["aot_unpaired"], "label_smoothing": 0.2}, {"ranks": 2}),
    "aot_unpaired-lora": (["--loss_type", "aot_unpaired", "--pp", "2", "--per_device_train_batch_size", "2"], {"loss_type": ["aot_unpaired"]}, {"lora": True, "ranks": 2}),
    "cp2-apo": (["--cp", "2", "--loss_type", "apo_down"], {"loss_type": ["apo_down"]}, {"ranks": 2}),
}


LAYOUTS = [(1, []), (1, ["--per_device_train_batch_size", "1"]), (1, ["--recompute", "block"]), (2, ["--zero", "1", "--per_device_train_batch_size", "2"]),
           (2, ["--zero", "3", "--per_device_train_batch_size", "1"]), (2, ["--tp", "2", "--sp"]), (2, ["--pp", "2", "--per_device_train_batch_size", "2"]),
           (2, ["--cp", "2"]), (1, ["--offload_optimizer", "cpu"])]


def random_case(dice):
    """A list of one to four losses with weights, or one loss with another divergence; random numbers, a random layout, sometimes an adapter."""
    beta = round(10 ** dice.uniform(-1.5, 0), 3)
    mine, trl, extra = ["--beta", str(beta)], {"beta": beta}, {}
    smoothing, tau = round(dice.uniform(0.01, 0.3), 3), round(dice.uniform(0.05, 0.5), 3)
    if dice.random() < 0.3:
        kinds = [dice.choice("sigmoid hinge ipo sigmoid_norm discopop".split())]
        f = dice.choice("js_divergence alpha_divergence".split())  # of forward_kl, an exponential, random numbers make rounding
        mine, trl = mine + ["--f_divergence_type", f], trl | {"f_divergence_type": f}
        if f == "alpha_divergence":
            coef = round(dice.uniform(0.2, 0.9), 2)
            mine, trl = mine + ["--f_alpha_divergence_coef", str(coef)], trl | {"f_alpha_divergence_coef": coef}
    else:
        kinds = dice.sample("hinge ipo nca_pair bco_pair sppo_hard apo_zero apo_down robust exo_pair discopop sigmoid".split(), dice.randint(1, 4))
    if "robust" in kinds or "exo_pair" in kinds:  # both losses of the logistic kind are smoothed here, in TRL not
        kinds = [k for k in kinds if k != "sigmoid"]
        mine, trl = mine + ["--label_smoothing", str(smoothing)], trl | {"label_smoothing": smoothing}
    weights = [round(dice.uniform(0.1, 2), 2) for _ in kinds]
    mine += ["--loss_type", ",".join(f"{k}:{w}" for k, w in zip(kinds, weights))]
    trl |= {"loss_type": kinds, "loss_weights": weights}
    if "discopop" in kinds:
        mine, trl = mine + ["--discopop_tau", str(tau)], trl | {"discopop_tau": tau}
    ranks, layout = dice.choice(LAYOUTS)
    if dice.random() < 0.25:
        extra = {"lora": True}
    return mine + layout, trl, extra | {"ranks": ranks}


class InOrder:
    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)


class DPOInOrder(InOrder, DPOTrainer):
    pass


class CPOInOrder(InOrder, CPOTrainer):
    pass


def make_model(work):
    config = {"model_type": "qwen2", "vocab_size": 264, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 512,
              "rope_theta": 10000.0, "initializer_range": 0.05, "tie_word_embeddings": False, "bos_token_id": 256, "eos_token_id": 256}
    with open(f"{work}/config.json", "w") as f:
        json.dump(config, f)
    subprocess.run([trireme, "init", "--config", "config.json", "--tokenizer", "bytes", "--seed", "23", "--out", "model", "--quiet"], cwd=work, check=True)


def make_pairs(path, is_long):
    """The number in front is the line. Long: both answers of a pair are longer than half a row, so that both are cut as TRL cuts them."""
    records = []
    for i in range(36):
        tail = " and that is that, as everybody here knows" if is_long else ""
        good, bad = f" {'yes' if i % 3 else 'indeed'}: {i * i % 31}{tail}", f" hardly {i * 5 % 17}{'?' * (i % 7)}{tail}"
        records.append({"prompt": f"{i}. is it {'so' * (i % 5)}?", "chosen": good, "rejected": bad})
    with open(path, "w") as f:
        f.writelines(json.dumps(r) + "\n" for r in records)
    return records


def ours(work, name, options, ranks):
    launch = ["launch", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    base = [] if "--per_device_train_batch_size" in options else ["--per_device_train_batch_size", str(BATCH // (ranks if "--dp" in options else 1))]
    base += [] if "--sequence_length" in options else ["--sequence_length", "256"]
    base += [] if "--weight_decay" in options else ["--weight_decay", "0"]
    subprocess.run([trireme, *launch, "train", *([] if "--model" in options else ["--model", "model"]), "--data", "pairs.jsonl", "--output", name, *([] if "--task" in options else ["--task", "dpo"]), "--packing", "none",
                    "--train_batch_size", str(BATCH), "--max_steps", str(STEPS), "--learning_rate", "1e-3", "--threads", "1", "--quiet", "--save_steps", "0",
                    *base, *options], cwd=work, check=True, capture_output=True, text=True)
    with open(f"{work}/{name}/events.jsonl") as f:
        steps = [e for e in map(json.loads, f) if e["event"] == "step"]
    order = []
    for step in range(1, STEPS + 1):
        text = subprocess.run([trireme, "data", "show", name, "--step", str(step)], cwd=work, check=True, capture_output=True, text=True).stdout
        found = [int(x) for x in re.findall(r"^\D{0,4}(\d+)\. is", text, re.M)]
        assert len(found) == BATCH, (step, found, text)
        order += found
    return steps, order


def theirs(work, records, order, options, extra):
    tokenizer = AutoTokenizer.from_pretrained(f"{work}/model")
    tokenizer.pad_token = tokenizer.eos_token
    transformers.set_seed(1)
    model = AutoModelForCausalLM.from_pretrained(f"{work}/model", dtype=torch.float32)
    args = dict(output_dir=f"{work}/trl", per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=1e-3, lr_scheduler_type="linear", logging_steps=1,
                report_to=[], bf16=False, fp16=False, use_cpu=True, max_length=None, gradient_checkpointing=False, save_strategy="no", beta=0.1,
                weight_decay=0.0, max_grad_norm=1.0, warmup_steps=0, disable_tqdm=True) | options
    more = {}
    if extra.get("lora"):
        import peft
        start = peft.PeftModel.from_pretrained(model, f"{work}/start", is_trainable=True)
        more["peft_config"], model = None, start
    data = Dataset.from_list([records[i] for i in order])
    is_cpo = extra.get("trainer") == "cpo"
    if is_cpo:
        tokenizer.bos_token = None  # it puts one in front, which this tokenizer does not
        args["cpo_alpha"] = 0.0  # its mean is over the tokens of the batch
    trainer, config = (CPOInOrder, CPOConfig) if is_cpo else (DPOInOrder, DPOConfig)
    trainer = trainer(model=model, args=config(**args), train_dataset=data, processing_class=tokenizer, **more)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    for row in rows if args.get("loss_type") == "simpo" else []:  # means of tokens there, sums here
        row |= {"logps/chosen": 0, "logps/rejected": 0}
    return rows


def worst_of(got, want, beta):
    """The largest difference, as a share of the bound. A log-probability of an answer is a sum that float32 rounds to 2^-23 of itself, in
    both programs; rewards and losses are beta times differences of such sums, however small they are. AdamW turns rounding of small
    gradients into as much of a step, so norms after a few steps are compared to 1e-4, and those of a saturated loss, an exponential of such
    differences, to as much of a thousandth of the first."""
    worst, where, least = 0, "", 1e-3 * want[0]["grad_norm"]
    for i, (a, b) in enumerate(zip(want, got, strict=True)):
        sums = beta * max(abs(a["logps/chosen"]), abs(a["logps/rejected"])) * 2 ** -22
        for k, name in NAMES.items():
            if k not in a or (a[k] == 0 and k.startswith("logps")) or (k == "rewards/accuracies" and i == 0):  # equal rewards: rounding decides
                continue
            bound = 2 * BOUND * max(a[k], least) if k == "grad_norm" else BOUND * abs(a[k]) + (sums if k == "loss" or k.startswith("rewards") else 0)
            off = abs(a[k] - b[name]) / bound
            if off > worst:
                worst, where = off, f"step {i + 1} {name}: {b[name]:.8g}, there {a[k]:.8g}"
    return worst, where


def main():
    transformers.logging.set_verbosity_error()
    bad, cases, names = 0, CASES, sys.argv[1:] or CASES
    if sys.argv[1:2] == ["--random"]:
        dice = random.Random(int(sys.argv[3]))
        cases = names = {f"{i}": random_case(dice) for i in range(int(sys.argv[2]))}
    for name in names:
        mine, trl, extra = cases[name]
        with tempfile.TemporaryDirectory() as work:
            make_model(work)
            records = make_pairs(f"{work}/pairs.jsonl", extra.get("long"))
            if extra.get("lora"):  # an adapter that neither of them begins with zeros
                import peft
                base = AutoModelForCausalLM.from_pretrained(f"{work}/model", dtype=torch.float32)
                torch.manual_seed(3)
                start = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM"))
                start.save_pretrained(f"{work}/start")
                mine = [*mine, "--model", "start"]
            steps, order = ours(work, "out", mine, extra.get("ranks", 1))
            worst, where = worst_of(steps, theirs(work, records, order, trl, extra), trl.get("beta", 0.1))
        bad += not worst <= 1
        print(f"{'ok  ' if worst <= 1 else 'FAIL'} {name}: {worst:.2f} of the bound ({where}){'' if cases is CASES else ' ' + ' '.join(mine)}", flush=True)
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
