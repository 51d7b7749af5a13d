"""A small model, trained, measured and asked from Python. Needs the package trireme and the program (docs/guide/python.md)."""
import json

import trireme

config = {"model_type": "llama", "vocab_size": 264, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
          "num_attention_heads": 4, "max_position_embeddings": 128, "bos_token_id": 256, "eos_token_id": 256}
with open("small.json", "w", encoding="utf-8") as f:
    json.dump(config, f)
trireme.init("small.json", "small", tokenizer="bytes")

rows = [{"text": f"Stroke {i}: three banks of oars, one hundred and seventy rowers."} for i in range(64)]
options = {"model": "small", "data": rows, "sequence_length": 64, "train_batch_size": 8}
print("bytes:", trireme.plan(**options)["total_bytes"])

run = trireme.train(**options, max_steps=20, learning_rate=3e-3, output="trained")
for event in run:
    if event["event"] == "step" and event["step"] % 5 == 0:
        print(f"step {event['step']:3d}  loss {event['loss']:.4f}")

print("loss:", trireme.eval(model="trained", data=rows, sequence_length=64)["loss"])
print("text:", trireme.generate("trained", "Stroke 7:", max_new_tokens=24, temperature=0))
