"""Writes llamafactory.json: records of LLaMA-Factory's two formats as LLaMA-Factory tokenises and masks them.

    DISABLE_VERSION_CHECK=1 python make_llamafactory.py LLAMAFACTORY TRIREME      LLAMAFACTORY: the directory src of its source distribution

Records go through its converters and its supervised processor with the template chatml, and the map is what `trireme config import` makes of the
same dataset_info.json. Cases are as in make_shapes.py. One thing differs and is taken out of the labels here: LLaMA-Factory trains the line end
behind <|im_end|> too, which is after the token that ends a turn.
"""
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import types

HERE = os.path.dirname(os.path.abspath(__file__))
CHAT = os.path.join(HERE, "..", "chat")
H, G = [(lambda who: lambda text: {"from": who, "value": text})(w) for w in ("human", "gpt")]
R = lambda role, text: {"role": role, "content": text}
CASES = [
    # name, entry of dataset_info.json, further keys of the run, records
    ("alpaca", {}, {}, [{"instruction": "Name a boat.", "input": "", "output": "Argo."}, {"instruction": "Add.", "input": "1 2", "output": "3"}]),
    ("alpaca history", {"columns": {"prompt": "q", "query": "ctx", "response": "a", "system": "sys", "history": "past"}}, {},
     [{"q": "Name a boat.", "ctx": "", "a": "Argo.", "sys": "Be brief.", "past": [["Hi", "Ahoy"], ["Up?", "Aloft"]]},
      {"q": "Add.", "ctx": "1 2", "a": "3", "sys": "", "past": []}]),
    ("alpaca without a column", {"columns": {"prompt": "instruction", "response": "output"}}, {},
     [{"instruction": "Name a boat.", "input": "not read", "output": "Argo.", "system": "not read"}]),
    ("sharegpt", {"formatting": "sharegpt", "columns": {"messages": "conversations"}}, {},
     [{"conversations": [H("How deep?"), G("12 metres."), H("Sure?"), G("Yes.")]}]),
    ("sharegpt system", {"formatting": "sharegpt", "columns": {"messages": "conversations", "system": "system"}}, {},
     [{"system": "Be brief.", "conversations": [H("How deep?"), G("12 metres.")]}]),
    ("sharegpt tags", {"formatting": "sharegpt", "columns": {"messages": "dialog"},
                       "tags": {"role_tag": "who", "content_tag": "what", "user_tag": "client", "assistant_tag": "bot"}}, {},
     [{"dialog": [{"who": "client", "what": "How deep?"}, {"who": "bot", "what": "12 metres."}]}]),
    ("openai", {"formatting": "sharegpt", "columns": {"messages": "messages"},
                "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant", "system_tag": "system"}}, {},
     [{"messages": [R("system", "Be brief."), R("user", "How deep?"), R("assistant", "12 metres.")]}]),
    ("mask_history", {"formatting": "sharegpt", "columns": {"messages": "conversations"}}, {"mask_history": True},
     [{"conversations": [H("How deep?"), G("12 metres."), H("Sure?"), G("Yes.")]}]),
    ("train_on_prompt", {}, {"train_on_prompt": True}, [{"instruction": "Name a boat.", "input": "", "output": "Argo."}]),
]


def load(source):
    """Packages for sound and pictures that its modules import are not needed for text."""
    sys.path.insert(0, source)
    for name in ("torchaudio", "av", "librosa", "fire", "omegaconf"):
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
            sys.modules[name].OmegaConf = object


def imported(trireme, entry, more):
    with tempfile.TemporaryDirectory() as d:
        with open(os.path.join(d, "dataset_info.json"), "w") as f:
            json.dump({"x": {"file_name": "a.jsonl"} | entry}, f)
        with open(os.path.join(d, "a.yaml"), "w") as f:
            json.dump({"stage": "sft", "finetuning_type": "full", "model_name_or_path": "m", "dataset": "x", "dataset_dir": d, "template": "chatml"} | more, f)
        out = subprocess.run([trireme, "config", "import", os.path.join(d, "a.yaml"), "--json"], capture_output=True, text=True).stdout
    config = json.loads(out.splitlines()[-1])["config"]
    source = config["data"][0]
    return {k: v for k, v in source.items() if k != "path"} if isinstance(source, dict) else None, config.get("train_on", "assistant")


def encode(entry, more, record):
    from llamafactory.data.converter import AlpacaDatasetConverter, SharegptDatasetConverter
    from llamafactory.data.parser import DatasetAttr
    from llamafactory.data.processor.supervised import SupervisedDatasetProcessor
    from llamafactory.data.template import get_template_and_fix_tokenizer
    from llamafactory.hparams import DataArguments
    from transformers import PreTrainedTokenizerFast
    tok = PreTrainedTokenizerFast(tokenizer_file=os.path.join(CHAT, "model", "tokenizer.json"), bos_token="<s>", eos_token="</s>", pad_token="</s>")
    args = DataArguments(template="chatml", cutoff_len=2048, **more)
    template, attr = get_template_and_fix_tokenizer(tok, args), DatasetAttr("file", "x")
    attr.join(entry)
    e = (SharegptDatasetConverter if entry.get("formatting") else AlpacaDatasetConverter)(attr, args)(record)
    ids, labels = SupervisedDatasetProcessor(template=template, tokenizer=tok, processor=None, data_args=args)._encode_data_example(
        prompt=e["_prompt"], response=e["_response"], system=e["_system"], tools=e["_tools"], images=[], videos=[], audios=[])
    end, line = tok.convert_tokens_to_ids("<|im_end|>"), tok.encode("\n", add_special_tokens=False)[0]
    if "train_on_prompt" not in more:
        labels = [-100 if k and ids[k] == line and ids[k - 1] == end else x for k, x in enumerate(labels)]
    return {"ids": ids, "labels": labels}


def main():
    load(sys.argv[1])
    cases = []
    for name, entry, more, records in CASES:
        source, mask = imported(sys.argv[2], entry, more)
        cases.append({"name": "llama-factory " + name, "map": source, "mask": mask, "records": records, "rows": [encode(entry, more, r) for r in records]})
    with open(os.path.join(HERE, "llamafactory.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
    print(len(cases), "cases,", sum(len(c["rows"]) for c in cases), "records")


if __name__ == "__main__":
    main()
