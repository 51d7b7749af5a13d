"""Writes chats.json: templates x conversations x add_generation_prompt, rendered by transformers, with loss masks.

Run: python make_chats.py   (needs transformers, tokenizers, jinja2)
The masks are derived here in a way of their own: each assistant message's content is replaced by a sentinel in the full
conversation, which shows where the content lies, and the end-of-turn text is written down per template. Offsets come
from the HF tokenizer of model/, a byte-level one with the special tokens that the templates use. null: to be refused.
"""
import copy
import glob
import json
import os

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

HERE = os.path.dirname(os.path.abspath(__file__))
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>",
           "<start_of_turn>", "<end_of_turn>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>",
           "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|USER_TOKEN|>"]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "name <b>&"}, "days": {"type": "integer"},
                                     "tags": {"type": "array", "items": {"type": "string"}}, "x": {"type": ["string", "number"]}},
    "required": ["city"]}}}]
CALL = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "abc123def", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Köln", "days": 2, "t": 1.0, "b": True, "z": None}}}]}
S, U, A = (lambda r: lambda c: {"role": r, "content": c})("system"), (lambda c: {"role": "user", "content": c}), (lambda c: {"role": "assistant", "content": c})
CHATS = {
    "one_turn": [U("Hi"), A("Hello there.")],
    "prompt_only": [U("Hi")],
    "system": [S("Be brief."), U("Hi"), A("Hello.")],
    "multi": [U("a"), A("first answer"), U("b"), A("second answer"), U("c"), A("third answer")],
    "system_multi": [S("Sys"), U("a"), A("one more"), U("b"), A("two more")],
    "empty": [],
    "empty_texts": [S(""), U(""), A("")],
    "unicode": [U("日本語 ✓ é 😀"), A("Größe: ναι 😀\u00a0\u2028 x")],
    "blanks": [S("  s \n"), U("\n\n q  "), A("  lead and trail \n\n")],
    "quotes": [U("say \"x\" \\n 'y' <b>&amp;</b>\t{{ 7*7 }} {% raw %}"), A("{# c #} \"q\" \\ ' done")],
    "think": [U("q1"), A("<think>\nlong thought\n</think>\n\nfirst result"), U("q2"), A("<think>\nsecond thought\n</think>\n\nsecond result")],
    "reasoning": [U("q1"), {"role": "assistant", "content": "plain result", "reasoning_content": "because of it"}, U("q2"), {"role": "assistant", "content": "other result", "thinking": "hm so"}],
    "two_users": [U("a"), U("b"), A("answered both")],
    "assistant_first": [A("I start here"), U("ok"), A("fine then")],
    "tool_calls": [U("weather?"), CALL, {"role": "tool", "tool_call_id": "abc123def", "content": "{\"temp\": 20.5}"}, A("It is warm."), U("thanks"), A("welcome!")],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "look "}, {"type": "image"}, {"type": "text", "text": "here"}]}, {"role": "assistant", "content": [{"type": "text", "text": "I see it."}]}],
    "extra_keys": [{"role": "user", "content": "x", "name": "Bob", "weight": 1}, A("y answer")],
}
END = {"llama31": "<|eot_id|>", "gemma2": "<end_of_turn>", "phi3": "<|end|>", "zephyr": "</s>", "mistral03": "</s>",
       "deepseek_r1": "<｜end▁of▁sentence｜>", "command_r": "<|END_OF_TURN_TOKEN|>",
       "builtin/llama3": "<|eot_id|>", "builtin/gemma": "<end_of_turn>", "builtin/phi3": "<|end|>", "builtin/chatml": "<|im_end|>", "builtin/qwen": "<|im_end|>"}
# What the model writes in front of the content, behind its prompt.
LEAD = {"mistral03": " ", "builtin/mistral": " ", "builtin/llama2": " ", "builtin/vicuna": " "}
MASK_CHATS = ["one_turn", "system", "multi", "system_multi", "unicode", "quotes"]


def make_tokenizer():
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    order = [c for c in map(chr, list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256)))]
    rest = sorted(set(alphabet) - set(order))
    bytes_of = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    vocab = {c: b for c, b in zip(order, bytes_of)}
    for c, b in zip(rest, [b for b in range(256) if b not in bytes_of]):
        vocab[c] = b
    tok = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    os.makedirs(os.path.join(HERE, "model"), exist_ok=True)
    tok.save(os.path.join(HERE, "model", "tokenizer.json"))
    with open(os.path.join(HERE, "model", "tokenizer_config.json"), "w") as f:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "clean_up_tokenization_spaces": False,
                   "eos_token": {"__type": "AddedToken", "content": "</s>", "special": True}, "pad_token": "</s>"}, f, indent=1)
    return PreTrainedTokenizerFast(tokenizer_file=os.path.join(HERE, "model", "tokenizer.json"), bos_token="<s>", eos_token="</s>", pad_token="</s>")


def render(template, chat, prompt, tools=None, **kwargs):
    out, _ = render_jinja_template(conversations=[copy.deepcopy(chat)], tools=tools, chat_template=template,
                                   add_generation_prompt=prompt, bos_token="<s>", eos_token="</s>", pad_token="</s>",
                                   date_string="26 Jul 2024", **kwargs)
    return out[0]


def turn_spans(template, name, chat):
    """(begin, end) in characters of each assistant turn in the full rendering."""
    full, spans = render(template, chat, False), []
    for i, message in enumerate(chat):
        if message["role"] != "assistant":
            continue
        marked = copy.deepcopy(chat)
        marked[i]["content"] = "\u241f" * 7
        other = render(template, marked, False)
        begin = other.index("\u241f" * 7)
        tail = len(other) - begin - 7
        end = len(full) - tail
        stop = END.get(name, "<|im_end|>" if name.split("/")[-1] in ("qwen25", "qwen3", "chatml", "smollm2", "hermes_tools", "content_parts") else "</s>")
        at = full.index(stop, end)
        assert at - end <= 1, (name, full[end:at])
        lead = LEAD.get(name, "")
        assert full[begin - len(lead):begin] == lead, (name, full[begin - 5:begin])
        spans.append((begin - len(lead), at + len(stop)))
    return full, spans


def trained(name, chat_name, spans):
    """Turns that the template writes into history as the model wrote them."""
    if name == "qwen3":  # earlier turns lose their (empty) <think> block; the last keeps it, behind the prompt
        begin, end = spans[-1]
        return [(begin - len("<think>\n\n</think>\n\n"), end)]
    if name == "mistral03" and chat_name.startswith("system"):
        return []  # the system text is written only while a user turn is last: no prompt of the model's is in the text
    return spans


def mask_row(tok, template, name, chat_name):
    full, spans = turn_spans(template, name, CHATS[chat_name])
    enc = tok(full, add_special_tokens=False, return_offsets_mapping=True)
    row = {"ids": enc["input_ids"]}
    for mode, wanted in (("assistant", trained(name, chat_name, spans)), ("last", trained(name, chat_name, spans)[-1:])):
        row[mode] = None if not wanted else "".join("1" if any(b < end and e > begin for begin, end in wanted) else "0"
                            for b, e in enc["offset_mapping"])
    return row


def main():
    tok = make_tokenizer()
    rows, masks = [], []
    files = sorted(glob.glob(os.path.join(HERE, "templates", "*.jinja"))) + sorted(glob.glob(os.path.join(HERE, "builtin", "*.jinja")))
    for path in files:
        name = os.path.basename(path)[:-6] if "templates" in path else "builtin/" + os.path.basename(path)[:-6]
        template = open(path, encoding="utf-8", newline="").read()
        for chat_name, chat in CHATS.items():
            for prompt in (False, True):
                for tools in (None, TOOLS) if name in ("qwen25", "qwen3", "mistral03", "hermes_tools", "builtin/chatml", "builtin/qwen") else (None,):
                    for extra in ({}, {"enable_thinking": False}) if name == "qwen3" else ({},):
                        row = {"template": name, "chat": chat_name, "prompt": prompt, "tools": tools is not None, "set": extra}
                        try:
                            row["out"] = render(template, chat, prompt, tools, **extra)
                        except Exception as error:
                            row["error"] = f"{type(error).__name__}: {error}"
                        rows.append(row)
        for chat_name in MASK_CHATS:
            if name == "gemma2" and chat_name.startswith("system"):
                continue
            masks.append({"template": name, "chat": chat_name, **mask_row(tok, template, name, chat_name)})
    with open(os.path.join(HERE, "chats.json"), "w", encoding="utf-8") as f:
        f.write(json.dumps({"chats": CHATS, "tools": TOOLS, "rows": [], "masks": []}, indent=1)[:-len('"rows": [],\n "masks": []\n}')])
        f.write('"rows": [\n' + ",\n".join(json.dumps(r) for r in rows) + '\n],\n"masks": [\n' + ",\n".join(json.dumps(r) for r in masks) + "\n]}\n")
    print(len(rows), "renderings,", sum("error" in r for r in rows), "of them errors;", len(masks), "masks")


if __name__ == "__main__":
    main()
