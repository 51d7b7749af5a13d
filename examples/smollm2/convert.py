#!/usr/bin/env python3
"""A GGUF file to a Hugging Face directory, by transformers. Usage: convert.py FILE.gguf DIR"""
import pathlib
import sys

import torch
import transformers

gguf, out = pathlib.Path(sys.argv[1]), sys.argv[2]
model = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
config = {k: v for k, v in model.config.to_dict().items() if k != "quantization_config"}
plain = transformers.AutoModelForCausalLM.from_config(type(model.config)(**config))
plain.load_state_dict(model.state_dict())
plain.generation_config = model.generation_config
plain.save_pretrained(out)
transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(out)
