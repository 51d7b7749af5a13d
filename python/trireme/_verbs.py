"""Verbs that answer once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ._program import Json, call


@dataclass(frozen=True)
class Generation:
    """What a model wrote."""

    text: str
    ids: list[int]

    def __str__(self) -> str:
        return self.text


def init(config: Any, output: Any, **options: Any) -> str:
    """A Hugging Face directory with random weights; returns its path."""
    return str(call("init", config=config, output=output, **options)["path"])


def plan(**options: Any) -> Json:
    """Bytes, flops and time of a run, without running it: {"ranks": [{"total_bytes", "arenas", ...}], "total_bytes", ...}."""
    return call("plan", **options)


def eval(**options: Any) -> Json:  # noqa: A001 - the name of the verb
    """Loss of a model on data: {"loss", "perplexity", "tokens"}."""
    return call("eval", **options)


def generate(model: Any, prompt: str, **options: Any) -> Generation:
    """Continues a prompt."""
    done = call("generate", model=model, prompt=prompt, **options)
    return Generation(str(done["text"]), list(done["ids"]))


def ckpt_export(directory: Any, to: str, output: Any, **options: Any) -> Json:
    """A model in the form of another program ("hf", "gguf:q4_k_m", "ollama", ...):
    {"out", "bytes", "kl", "max_logit_diff", "next", ...}."""
    return call("ckpt", "export", str(directory), to=to, output=output, **options)
