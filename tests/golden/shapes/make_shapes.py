"""Writes shapes.json: records of every shape as the tool that defines it tokenises and masks them.

    python make_shapes.py AXOLOTL TRIREME      AXOLOTL: the directory src of its source distribution

Needs trl, datasets, transformers. TRL's cases go through SFTTrainer's own preparation of a data set, from a file that `datasets`
reads; axolotl's through its prompt strategies. The tokenizer and the chatml template are those of tests/golden/chat. A case is: name,
the map of its source (docs/guide/data.md), the mask mode, the records, and for each record ids and labels (-100: no loss).
"""
import json
import os
import sys
import tempfile
import types

HERE = os.path.dirname(os.path.abspath(__file__))
CHAT = os.path.join(HERE, "..", "chat")
U, A, S = [(lambda role: lambda text: {"role": role, "content": text})(r) for r in ("user", "assistant", "system")]
TOOLS = [{"type": "function", "function": {"name": "sound", "description": "Depth.", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}]
CALL = [{"type": "function", "function": {"name": "sound", "arguments": {"at": "bow"}}}]
TRL = [
    # name, map, mask, completion_only_loss, assistant_only_loss, records
    ("trl text", None, "assistant", None, False, [{"text": "Ahoy there"}, {"text": "ends itself</s>"}]),
    ("trl text column", {"columns": {"text": "body"}}, "assistant", None, False, [{"body": "Ahoy there"}, {"body": "two"}]),
    ("trl prompt and completion", None, "assistant", True, False, [{"prompt": "How deep? ", "completion": "12 metres."}, {"prompt": "x", "completion": "y</s>"}]),
    ("trl prompt and completion, all", None, "all", False, False, [{"prompt": "How deep? ", "completion": "12 metres."}]),
    ("trl chat completion", None, "completion", True, False,
     [{"prompt": [S("Be brief."), U("How deep?")], "completion": [A("12 metres.")]},
      {"prompt": [U("a"), A("b"), U("c")], "completion": [A("d"), U("e"), A("f")]}]),
    ("trl chat completion, assistant", None, "assistant", True, True, [{"prompt": [U("a"), A("b"), U("c")], "completion": [A("d"), U("e"), A("f")]}]),
    ("trl messages", None, "assistant", None, True, [{"messages": [S("Be brief."), U("How deep?"), A("12 metres."), U("Sure?"), A("Yes.")]}]),
    ("trl messages, all", None, "all", None, False, [{"messages": [U("How deep?"), A("12 metres.")]}]),
    ("trl from and value", None, "assistant", None, True, [{"conversations": [{"from": "user", "value": "How deep?"}, {"from": "assistant", "value": "12 metres."}]}]),
    ("trl tools", None, "assistant", None, True,
     [{"messages": [U("How deep?"), {"role": "assistant", "content": "", "tool_calls": CALL}, {"role": "tool", "content": "12 m"}, A("12 metres.")], "tools": json.dumps(TOOLS)},
      {"messages": [U("No call"), A("Right.")], "tools": json.dumps(TOOLS)}]),
    ("trl template variables", None, "assistant", None, True,
     [{"messages": [U("How deep?"), {"role": "assistant", "content": "12 metres.", "reasoning_content": "a sounding"}], "chat_template_kwargs": {"x": 1}}]),
    ("trl tokens", None, "assistant", None, False, [{"input_ids": [65, 66, 67, 68], "labels": [-100, -100, 67, 68]}, {"input_ids": [70, 71], "labels": [70, 71]}]),
]
ALPACA = [{"instruction": "Name a boat.", "input": "", "output": "Argo."}, {"instruction": "Add.", "input": "1 2", "output": "3"}]
TASK_INPUT = "Below is an instruction that describes a task, paired with an input that provides further context. Write a response that appropriately completes the request."
TASK = "Below is an instruction that describes a task. Write a response that appropriately completes the request."
AXOLOTL = [
    # name, type of axolotl, records; the map is what `trireme config import` makes of the type (tests/data/test_shapes.c has no importer)
    ("alpaca", ALPACA), ("alpaca:chat", ALPACA), ("alpaca:chatml", ALPACA), ("alpaca:phi", ALPACA),
    ("alpaca_chat.load_qa", [{"question": "Name a boat.", "answer": "Argo."}]),
    ("alpaca_w_system.load_open_orca", [{"system_prompt": "Be brief.", "question": "Name a boat.", "response": "Argo."},
                                        {"system_prompt": "", "question": "Another?", "response": "Pequod."}]),
    ("alpaca_w_system.load_open_orca_chatml", [{"system_prompt": "Be brief.", "question": "Name a boat.", "response": "Argo."}]),
    ("alpaca_w_system.load_instruct", [{"system": "Be brief.", **ALPACA[1]}, {"system": "", **ALPACA[0]}]),
    ("gpteacher", [{"instruction": "Name a boat.", "input": "", "response": "Argo."}]),
    ("oasst", [{"INSTRUCTION": "Name a boat.", "RESPONSE": "Argo."}]),
    ("jeopardy", [{"question": "It sailed for the fleece", "category": "BOATS", "answer": "the Argo"}]),
    ("summarizetldr", [{"article": "A long story.", "summary": "Short."}]),
    ("context_qa", [{"article": "A ship.", "question": "What?", "answer": "A ship."}]),
    ("context_qa.load_v2", [{"context": "A ship.", "question": "What?", "answer": "A ship."}]),
    ("context_qa.load_404", [{"article": "A ship.", "unanswerable_question": "Why?"}]),
    ("orcamini", [{"system_prompt": "Be brief.", "question": "Name a boat.", "response": "Argo."}]),
    ("reflection", [{"instruction": "Name.", "input": "", "output": "A", "reflection": "B", "corrected": "C"}]),
    ("input_output", [{"segments": [{"label": False, "text": "<s>ask "}, {"label": True, "text": "say</s>"}, {"label": False, "text": " x"}]}]),
]


def trl_cases(tok, template):
    from datasets import load_dataset
    from trl import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer
    for name, source, mask, completion_only, assistant_only, records in TRL:
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "a.jsonl")
            with open(path, "w") as f:
                f.writelines(json.dumps(r) + "\n" for r in records)
            data = load_dataset("json", data_files=path, split="train", cache_dir=d)
            args = SFTConfig(output_dir=d, max_length=None, completion_only_loss=completion_only, assistant_only_loss=assistant_only, report_to="none",
                             dataset_text_field="body" if source else "text", bf16=False, use_cpu=True)
            me = types.SimpleNamespace(_tokenizer=tok, _is_vlm=False, chat_template=template, args=args, template=template, assistant_only_loss=assistant_only, completion_only_loss=bool(completion_only))
            done = SFTTrainer._prepare_dataset(me, data, tok, args, False, None, "train")
            rows = []
            for row in done:
                ids = list(row["input_ids"])
                labels = list(row["labels"]) if row.get("labels") is not None else list(ids)
                for key in ("completion_mask", "assistant_masks"):
                    use = completion_only if key == "completion_mask" else assistant_only
                    if use and row.get(key) is not None:
                        labels = [x if m else -100 for x, m in zip(labels, row[key])]
                rows.append({"ids": ids, "labels": labels})
        yield {"name": name, "map": source, "mask": mask, "records": records, "rows": rows}


def axolotl_strategy(kind, tok):
    import importlib
    from axolotl import prompt_tokenizers as pt, prompters as pr
    base, style = (kind.split(":") + [None])[:2]
    cfg = types.SimpleNamespace(train_on_inputs=False, sequence_len=4096)
    handlers = {"alpaca": (pr.AlpacaPrompter, pt.AlpacaPromptTokenizingStrategy), "gpteacher": (pr.GPTeacherPrompter, pt.GPTeacherPromptTokenizingStrategy),
                "oasst": (pr.AlpacaPrompter, pt.OpenAssistantPromptTokenizingStrategy), "jeopardy": (pr.JeopardyPrompter, pt.JeopardyPromptTokenizingStrategy),
                "summarizetldr": (pr.SummarizeTLDRPrompter, pt.SummarizeTLDRPromptTokenizingStrategy),
                "reflection": (pr.ReflectAlpacaPrompter, pt.AlpacaReflectionPTStrategy)}
    if base in handlers:
        prompter, strategy = handlers[base]
        return strategy(prompter(style or "instruct"), tok, False, 4096)
    module, _, load = base.partition(".")
    return getattr(importlib.import_module("axolotl.prompt_strategies." + module), load or "load")(tok, cfg)


def axolotl_cases(tok, trireme):
    import logging
    import subprocess
    stub = types.ModuleType("axolotl.utils.logging")
    stub.get_logger = lambda name: types.SimpleNamespace(warning=print, warning_once=print, error=print, info=print, debug=print, setLevel=print)
    package = types.ModuleType("axolotl")
    package.__path__ = [os.path.join(sys.argv[1], "axolotl")]
    utils = types.ModuleType("axolotl.utils")
    utils.__path__ = []
    strategies = types.ModuleType("axolotl.prompt_strategies")
    strategies.__path__ = [os.path.join(sys.argv[1], "axolotl", "prompt_strategies")]
    colorama = types.ModuleType("colorama")
    colorama.Fore = types.SimpleNamespace(CYAN="", RESET="")
    sys.modules.update({"axolotl": package, "axolotl.utils": utils, "axolotl.utils.logging": stub, "axolotl.prompt_strategies": strategies, "colorama": colorama})
    logging.disable(logging.WARNING)
    for kind, records in AXOLOTL:
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "a.yaml")
            with open(path, "w") as f:
                f.write(f"base_model: m\nsequence_len: 64\ndatasets:\n  - path: a.jsonl\n    type: {kind}\n")
            out = json.loads(subprocess.run([trireme, "config", "import", path, "--json"], capture_output=True, text=True).stdout.splitlines()[-1])
        source = {k: v for k, v in out["config"]["data"][0].items() if k != "path"}
        strategy, rows = axolotl_strategy(kind, tok), []
        for record in records:
            got = strategy.tokenize_prompt(record)
            rows.append({"ids": list(got["input_ids"]), "labels": list(got["labels"])})
        yield {"name": "axolotl " + kind, "map": source, "mask": "assistant", "records": records, "rows": rows}


def main():
    from transformers import PreTrainedTokenizerFast
    template = open(os.path.join(CHAT, "builtin", "chatml.jinja")).read()
    tok = PreTrainedTokenizerFast(tokenizer_file=os.path.join(CHAT, "model", "tokenizer.json"), bos_token="<s>", eos_token="</s>", pad_token="</s>")
    tok.chat_template = template
    cases = list(trl_cases(tok, template)) + list(axolotl_cases(tok, sys.argv[2]))
    with open(os.path.join(HERE, "shapes.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
    print(len(cases), "cases,", sum(len(c["rows"]) for c in cases), "records")


if __name__ == "__main__":
    main()
