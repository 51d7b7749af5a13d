#!/usr/bin/env python3
"""architecture.py ROOT TABLES [update]: the pages for engineers against the sources.

docs/architecture.md has a table between the marks `<!-- table NAME -->` and `<!-- end -->` for each table of the sources.
TABLES is the output of `parallel_tables print`. All columns but the last are made from the sources; the last is written by
hand and belongs to the name in the first. A table that differs is printed as it should be, or with `update` written into
the page; `?` marks a row whose last column has to be written.
docs/glossary.md lists each term once, in order, with a file that has the term.
"""
import os
import re
import sys

root, tables_path = sys.argv[1:3]
is_update = sys.argv[3:] == ["update"]
bad = []


def rows_of_sources():
    """name of a table -> rows of the columns that the sources decide"""
    tables = {"level1": [], "level2": [], "action": [], "room": []}
    source = {}
    folder = os.path.join(root, "src/parallel")
    for name in sorted(os.listdir(folder)):
        if name.endswith(".c"):
            for found in re.findall(r"^enum tr_status tr_pass_(\w+)\(", open(os.path.join(folder, name)).read(), re.M):
                source[found] = name
    for line in open(tables_path):
        table, *cells = line.split()
        if table.startswith("level"):
            cells.append(f"src/parallel/{source[cells[0]]}")
        tables[table].append([f"`{c}`" if i == 0 or "." in c else c.lower() for i, c in enumerate(cells)])
    for line in open(os.path.join(root, "CMakeLists.txt")):
        found = re.match(r"tr_room\((\w+)(.*?)\)", line)
        if found:
            tables["room"].append([f"`{found[1]}`", found[2].strip() or "-"])
    return tables


def cells_of(line):
    return [c.strip() for c in line.strip().strip("|").split(" | ")]


def check_tables():
    path = os.path.join(root, "docs/architecture.md")
    page = open(path).read()
    for name, want in rows_of_sources().items():
        found = re.search(rf"<!-- table {name} -->\n(.*?)<!-- end -->", page, re.S)
        if not found:
            bad.append(f"docs/architecture.md has no table {name}")
            continue
        head, rule, *lines = found[1].splitlines()
        text = {cells_of(line)[0]: cells_of(line)[-1] for line in lines}
        block = "\n".join([head, rule] + [f"| {' | '.join(row)} | {text.get(row[0], '?')} |" for row in want]) + "\n"
        if block == found[1] and "| ? |" not in block:
            continue
        if is_update:
            page = page.replace(found[1], block)
        else:
            bad.append(f"docs/architecture.md: table {name} should be (or run this with UPDATE=1)\n{block}")
    if is_update:
        open(path, "w").write(page)


def check_glossary():
    page = open(os.path.join(root, "docs/glossary.md")).read()
    rows = [cells_of(line) for line in page.splitlines() if line.startswith("| **")]
    terms = [row[0].strip("*") for row in rows]
    for term in sorted({t for t in terms if [x.lower() for x in terms].count(t.lower()) > 1}):
        bad.append(f"docs/glossary.md: {term} is listed twice")
    for a, b in zip(terms, sorted(terms, key=str.lower)):
        if a != b:
            bad.append(f"docs/glossary.md: {b} belongs in front of {a}")
            break
    for term, row in zip(terms, rows):
        if len(row) != 3 or not row[1].endswith("."):
            bad.append(f"docs/glossary.md: {term}: write | **term** | Sentence. | `file` |")
            continue
        path = os.path.join(root, row[2].strip("`"))
        word = re.split(r"[ ,(-]", term)[0].lower()
        if not os.path.isfile(path):
            bad.append(f"docs/glossary.md: {term}: {row[2]} is not there")
        elif word not in open(path).read().lower():
            bad.append(f"docs/glossary.md: {term}: {row[2]} does not have the word '{word}'")
    if len(terms) < 40:
        bad.append(f"docs/glossary.md: only {len(terms)} terms were found")


def check_paths():
    """Paths in back quotes exist, in every page. A room's file may be written without src/."""
    pages = ["README.md", "CONTRIBUTING.md"]
    for folder, _, names in os.walk(os.path.join(root, "docs")):
        pages += [os.path.relpath(os.path.join(folder, n), root) for n in names if n.endswith(".md")]
    rooms = "|".join(sorted(os.listdir(os.path.join(root, "src"))))
    path = re.compile(rf"`((?:src|tests|docs|tools|bench|share|examples|{rooms})/[\w./-]+\.(?:c|h|cu|md|sh|py|yaml|cmake|txt|csv))`")
    for page in pages:
        for name in set(path.findall(open(os.path.join(root, page)).read())):
            is_there = any(os.path.exists(os.path.join(root, d, name)) for d in ("", "src", "docs"))
            if not is_there and "add-a" not in page:  # guides name the files that one makes
                bad.append(f"{page}: {name} is not there")


check_tables()
check_glossary()
check_paths()
if bad:
    sys.exit("\n".join(bad))
