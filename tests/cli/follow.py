#!/usr/bin/env python3
"""follow.py PAGE TREE [BUILD OUT]: does what a guide says, and builds the program that comes of it.

TREE/src is a copy of the sources. A block of the page that is fenced as c goes where the sentence before it says:

    All of `PATH`:                                the block is the file as it is; nothing changes
    A new file `PATH`:                            the block is the file
    At the end of `PATH`:                         the block is appended
    In `PATH`, after the line with `TEXT`:        the block follows the first such line
    In `PATH`, before the line with `TEXT`:       the block precedes it

Blocks without such a sentence are for reading only. With BUILD and OUT every C file that was touched is compiled with the
flags of BUILD and linked in front of BUILD's libraries, so that it takes the place of the file it was made from. Headers of
one room may be touched in ways that leave other files valid (declarations); a page that changes a list or a struct needs a
build of its own, and leaves BUILD and OUT away.
"""
import json
import os
import re
import subprocess
import sys

page, tree = sys.argv[1:3]
build, out = sys.argv[3:5] if len(sys.argv) > 3 else (None, None)
PLACE = re.compile(r"^(?P<how>All of|A new file|At the end of|In) `(?P<path>[^`]+)`"
                   r"(?:, (?P<side>after|before) the line with `(?P<text>[^`]+)`)?:$")


def refuse(text):
    sys.exit(f"{page}: {text}")


def edits():
    place, block, fence = None, None, False
    for line in open(page):
        if line.startswith("```"):
            if not fence and line == "```c\n" and place:
                block = []
            elif fence and block is not None:
                yield place, block
                place = block = None
            fence = not fence
        elif block is not None:
            block.append(line)
        elif not fence and line.strip():
            place = PLACE.match(line)


def apply(place, block):
    path = os.path.join(tree, place["path"])
    if place["how"] == "A new file":
        open(path, "w").writelines(block)
        return
    lines = open(path).readlines()
    if place["how"] == "All of":
        if block != lines:
            refuse(f"{place['path']} is not what the page shows")
        return
    if place["how"] == "At the end of":
        at = len(lines)
    else:
        at = next((i for i, line in enumerate(lines) if place["text"] in line), None)
        if at is None:
            refuse(f"{place['path']} has no line with '{place['text']}'")
        at += place["side"] == "after"
    open(path, "w").writelines(lines[:at] + block + lines[at:])


def compile_all(paths):
    """The flags of a file are those of any file of its room."""
    commands = {e["file"]: e for e in json.load(open(os.path.join(build, "compile_commands.json")))}
    objects = []
    for path in paths:
        room = os.path.dirname(path)
        like = next(e for f, e in sorted(commands.items()) if os.path.dirname(f).endswith("/" + room) and f.endswith(".c"))
        source, made = os.path.abspath(os.path.join(tree, path)), os.path.abspath(os.path.join(tree, os.path.basename(path) + ".o"))
        command = re.sub(r" -o \S+ -c \S+$", "", like["command"]).replace(" -I", f" -I{os.path.abspath(tree)}/src -I", 1)
        run(f"{command} -Werror -o {made} -c {source}", like["directory"])
        objects.append(made)
    return objects


def run(command, directory):
    done = subprocess.run(command, shell=True, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        refuse(f"{command}\n{done.stdout}")
    return done.stdout


touched, n_edits = [], 0
for place, block in edits():
    apply(place, block)
    n_edits += place["how"] != "All of"
    if place["how"] != "All of" and place["path"] not in touched:
        touched.append(place["path"])
if not touched:
    refuse("no block says where it goes")
if build:
    objects = compile_all([p for p in touched if p.endswith(".c")])
    link = run("ninja -t commands trireme", build).splitlines()[-1]
    run(link.replace(" -o trireme ", f" {' '.join(objects)} -o {os.path.abspath(out)} "), build)
print(f"{n_edits} edits of {len(touched)} files")
