#!/usr/bin/env python3
"""Writes train.jsonl and valid.jsonl: a few hundred short conversations about a ship that does not exist.

The facts hold together (a name, a crew, a hold, a voyage log), so a model that has learned them answers questions it was
not asked in training; valid.jsonl asks in words that train.jsonl does not use. Usage: make_data.py DIR
"""
import json
import pathlib
import random
import sys

CREW = {"captain": "Ione Marsh", "helmsman": "Bram Okafor", "carpenter": "Tilda Voss", "cook": "Paolo Rey",
        "navigator": "Suda Lind", "surgeon": "Aled Thorne", "sailmaker": "Mirel Adeyo", "drummer": "Kit Salo"}
HOLD = {"olive oil": 240, "dried figs": 90, "cedar planks": 310, "blue glass": 36, "salt": 500, "tin": 75,
        "wool": 128, "amber": 12}
PORTS = ["Karst", "Ellesmoor", "Tavrin", "Old Quay", "Saint Ruan", "Verrow", "Lanthe", "Port Amity"]
ASK_CREW = ["Who is the {0} of the Meridian?", "What is the name of the Meridian's {0}?",
            "Tell me who serves as {0} on the Meridian.", "On the Meridian, who is the {0}?"]
ASK_HOLD = ["How much {0} does the Meridian carry?", "How many crates of {0} are in the Meridian's hold?",
            "What does the Meridian's manifest say about {0}?", "Count the {0} aboard the Meridian."]
ASK_PORT = ["Where does the Meridian sail after {0}?", "Which port follows {0} on the Meridian's voyage?",
            "The Meridian leaves {0}. Where next?", "After {0}, what is the Meridian's next port?"]
HELD = {"crew": "Give me the name of the Meridian's {0}, please.", "hold": "State the number of crates of {0} on the Meridian.",
        "port": "From {0}, to which port does the Meridian go?"}
SYSTEM = "You answer questions about the galley Meridian."


def facts():
    for role, name in CREW.items():
        yield "crew", ASK_CREW, role, f"The {role} of the Meridian is {name}."
    for goods, n in HOLD.items():
        yield "hold", ASK_HOLD, goods, f"The Meridian carries {n} crates of {goods}."
    for here, there in zip(PORTS, PORTS[1:] + PORTS[:1]):
        yield "port", ASK_PORT, here, f"After {here} the Meridian sails to {there}."


def turn(question, answer):
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(7)
    every = list(facts())
    train, valid = [], []
    for kind, asks, what, answer in every:
        train += [turn(ask.format(what), answer) for ask in asks]
        valid.append(turn(HELD[kind].format(what), answer))
    for _ in range(220):  # longer conversations: several facts, in any order
        picks = rng.sample(every, rng.randint(2, 4))
        train.append([m for kind, asks, what, answer in picks for m in turn(rng.choice(asks).format(what), answer)])
    rng.shuffle(train)
    for name, talks in (("train", train), ("valid", valid)):
        with open(out / f"{name}.jsonl", "w", encoding="utf-8") as f:
            for t in talks:
                f.write(json.dumps({"messages": [{"role": "system", "content": SYSTEM}, *t]}) + "\n")
        print(f"{name}.jsonl: {len(talks)} conversations")


if __name__ == "__main__":
    main()
