"""The program: where it is, how options become its arguments, and what its failures become here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, Optional

Json = dict[str, Any]


class TriremeError(RuntimeError):
    """A call that did not end well. `code` is the exit code (2: bad input, 70: a bug or the machine's fault, 75: stopped
    and saved, 78: do not run it again), `text` what the program said."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text or f"trireme ended with code {code}")
        self.code = code
        self.text = text


def find_program() -> str:
    """$TRIREME, else the program that came with this package, else the one in PATH."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "trireme")
    found = os.environ.get("TRIREME") or (beside if os.access(beside, os.X_OK) else shutil.which("trireme"))
    if not found:
        raise TriremeError(127, "no program: neither TRIREME names it, nor is it beside this package or in PATH")
    return found


def main() -> NoReturn:
    """The console script `trireme`: becomes the program."""
    program = find_program()
    os.execv(program, [program, *sys.argv[1:]])


def _is_records(value: Any) -> bool:
    """A list of dicts, or a dataset of `datasets`, whose items are dicts."""
    if isinstance(value, (list, tuple)):
        return len(value) > 0 and isinstance(value[0], Mapping)
    return not isinstance(value, (str, os.PathLike, Mapping)) and hasattr(value, "__getitem__") and hasattr(value, "__len__")


def _write_records(name: str, records: Iterable[Mapping[str, Any]], directory: str) -> str:
    path = os.path.join(directory, f"{name}.jsonl")
    with open(path, "w", encoding="utf-8") as f:
        for record in records:
            f.write(json.dumps(dict(record), ensure_ascii=False) + "\n")
    return path


class Arguments:
    """Options as arguments: True and False, numbers, paths, dicts (as JSON), lists (one argument an item). Records for
    `data` and `eval_data` go into files that live as long as this object."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._files: Optional[tempfile.TemporaryDirectory[str]] = None
        self.words: list[str] = []
        for name, value in options.items():
            if value is not None:
                self._add(name, value)

    def _add(self, name: str, value: Any) -> None:
        if name in ("data", "eval_data") and _is_records(value):
            if self._files is None:
                self._files = tempfile.TemporaryDirectory(prefix="trireme-")
            value = _write_records(name, value, self._files.name)
        if isinstance(value, (list, tuple)):
            for item in value:
                self._add(name, item)
            return
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif isinstance(value, Mapping):
            value = json.dumps(value)
        self.words += [f"--{name}", os.fspath(value) if isinstance(value, os.PathLike) else str(value)]

    def release(self) -> None:
        if self._files is not None:
            self._files.cleanup()
            self._files = None


def error_text(stderr: str) -> str:
    """The last thing that the program said as itself, without its name."""
    lines = stderr.strip().splitlines()
    for i in range(len(lines) - 1, -1, -1):
        if lines[i].startswith("trireme: "):
            return "\n".join([lines[i][len("trireme: ") :], *lines[i + 1 :]])
    return "\n".join(lines[-20:])


def call(verb: str, *words: str, **options: Any) -> Json:
    """`trireme VERB WORDS --options --json`: the object that it ends with. Raises TriremeError."""
    arguments = Arguments(options)
    try:
        done = subprocess.run([find_program(), verb, *words, *arguments.words, "--json"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, encoding="utf-8", errors="replace", check=False)
    finally:
        arguments.release()
    lines = done.stdout.strip().splitlines()
    if done.returncode not in (0, 1):  # 1 is an answer: no
        raise TriremeError(done.returncode, error_text(done.stderr))
    result: Json = json.loads(lines[-1]) if lines else {}
    return result


def version() -> str:
    """The version of the program."""
    done = subprocess.run([find_program(), "--version"], capture_output=True, text=True, check=True)
    return done.stdout.split()[1]
