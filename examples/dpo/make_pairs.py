#!/usr/bin/env python3
"""Writes train.jsonl and held.jsonl: made-up preferences between two answers about the galley of examples/smollm2.

The preferred answer states the fact, the other one hedges; both hold it. held.jsonl asks about facts that train.jsonl does not have, in
words that it does not use, so that a model whose rewards are right there has learnt the manner and not the answers. Usage: make_pairs.py DIR
"""
import json
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "smollm2"))
import make_data  # noqa: E402

HEDGES = ["Well, I am not sure about this: {0} Or maybe not!", "Good question! Some people say this: {0} Who knows, though?",
          "Hmm, I could be wrong here. {0} Do not quote me on that!", "Perhaps I should look it up. {0} But please ask somebody else!",
          "I cannot tell much about that. {0} Sorry!", "Oh, it is hard to say. {0} At least I guess so!"]


def pair(question, answer, rng):
    prompt = [{"role": "system", "content": make_data.SYSTEM}, {"role": "user", "content": question}]
    chosen, rejected = ([{"role": "assistant", "content": text}] for text in (answer, rng.choice(HEDGES).format(answer)))
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    rng, train, held = random.Random(11), [], []
    for i, (kind, asks, what, answer) in enumerate(make_data.facts()):
        if i % 4 == 3:
            held += [pair(make_data.HELD[kind].format(what), answer, rng) for _ in range(4)]
        else:
            train += [pair(ask.format(what), answer, rng) for ask in asks for _ in range(2)]
    rng.shuffle(train)
    for name, pairs in (("train", train), ("held", held)):
        with open(out / f"{name}.jsonl", "w", encoding="utf-8") as f:
            f.writelines(json.dumps(p) + "\n" for p in pairs)
        print(f"{name}.jsonl: {len(pairs)} pairs")


main()
