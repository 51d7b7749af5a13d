"""Trireme from Python: train, plan, eval, generate and watch, as the command line does them.

Every call starts the `trireme` program and reads what it says with --json; options have the names of the command line
(`trireme train --help`). Nothing is compiled, nothing else is needed, and a crash or a signal of a training stays in its
own process.

    import trireme
    run = trireme.train(model="model", data=[{"text": "..."}], output="out", max_steps=100)
    for event in run:
        if event["event"] == "step":
            print(event["step"], event["loss"])
    print(trireme.eval(model="out", data="held-out.jsonl")["perplexity"])
"""

from ._program import TriremeError, call, find_program, main, version
from ._run import Run, train, watch
from ._verbs import Generation, ckpt_export, eval, generate, init, plan

__all__ = [
    "Generation", "Run", "TriremeError", "call", "ckpt_export", "eval", "find_program", "generate", "init", "main", "plan",
    "train", "version", "watch",
]
