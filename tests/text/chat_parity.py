#!/usr/bin/env python3
"""Compares Trireme's chat templates with transformers: every published template that the packages trl and axolotl ship,
times the conversations of tests/golden/chat, with and without a prompt and tools.

usage: chat_parity.py PROGRAM WORK_DIR   (PROGRAM is the test text_chat; WORK_DIR keeps downloads). Needs python packages
transformers, tokenizers, jinja2 and pip itself. Exits 0 when nothing differs; what transformers refuses must be refused.
"""
import copy, glob, json, os, subprocess, sys, zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden", "chat"))
import make_chats
from transformers.utils.chat_template_utils import render_jinja_template

PACKAGES = ["trl", "axolotl"]


def fetch(work):
    """name -> text"""
    templates = {}
    for p in PACKAGES:
        if not glob.glob(os.path.join(work, p + "-*.whl")):
            subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", work, p], check=True)
        z = zipfile.ZipFile(glob.glob(os.path.join(work, p + "-*.whl"))[0])
        for n in z.namelist():
            if n.endswith(".jinja"):
                templates[p + "_" + os.path.basename(n)[:-6]] = z.read(n)
    return templates


def spans(template, chat, prompt, tools, out):
    """[begin, end] in bytes of what {% generation %} marks"""
    _, indices = render_jinja_template(conversations=[copy.deepcopy(chat)], tools=tools, chat_template=template, add_generation_prompt=prompt,
                                       bos_token="<s>", eos_token="</s>", pad_token="</s>", date_string="26 Jul 2024", return_assistant_tokens_mask=True)
    return [[len(out[:i].encode()) for i in span] for span in indices[0]]


def main():
    program, work = sys.argv[1:]
    os.makedirs(os.path.join(work, "templates"), exist_ok=True)
    rows, templates = [], fetch(work)
    for name, text in sorted(templates.items()):
        open(os.path.join(work, "templates", name + ".jinja"), "wb").write(text)
        for chat_name, chat in make_chats.CHATS.items():
            for prompt in (False, True):
                for tools in (None, make_chats.TOOLS):
                    row = {"template": name, "chat": chat_name, "prompt": prompt, "tools": tools is not None, "set": {}}
                    try:
                        row["out"] = make_chats.render(text.decode(), chat, prompt, tools)
                        if b"{% generation" in text or b"{%- generation" in text:
                            row["spans"] = spans(text.decode(), chat, prompt, tools, row["out"])
                    except Exception as error:
                        row["error"] = f"{type(error).__name__}: {error}"
                    rows.append(row)
    with open(os.path.join(work, "chats.json"), "w", encoding="utf-8") as f:
        json.dump({"chats": make_chats.CHATS, "tools": make_chats.TOOLS, "rows": rows, "masks": []}, f)
    print(len(templates), "templates,", len(rows), "renderings,", sum("error" in r for r in rows), "of them errors,", sum("spans" in r for r in rows), "with generation marks", flush=True)
    sys.exit(subprocess.run([program], env={**os.environ, "TR_CHATS": work}).returncode)


main()
