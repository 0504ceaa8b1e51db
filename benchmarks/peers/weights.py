"""Writes random weights for the model whose configuration is in a directory. Runs in vLLM's environment.

    python benchmarks/peers/weights.py DIRECTORY

The first element of every embedding is the same large number, and no layer changes it: multiplied with the
first column of the output matrix, it is a bias for each token, which keeps control tokens out of answers.

Heads attend to a few tokens each, by their content and their distance: an answer depends on all of its
context, and one token more or less changes it.
"""

import json
import math
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

BIAS = 8.0
_SHARPNESS = 3.0
"""The standard deviation of a head's scores."""
_NEVER = -1e4


def main() -> None:
    directory = Path(sys.argv[1])
    config = json.loads((directory / "config.json").read_text())
    added = json.loads((directory / "tokenizer.json").read_text())["added_tokens"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kind = getattr(torch, config["torch_dtype"])
    torch.manual_seed(7)
    width, middle, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    layers, head = config["num_hidden_layers"], config["head_dim"]
    queries, values = config["num_attention_heads"] * head, config["num_key_value_heads"] * head

    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        """Keeps the size of what it is multiplied with, times ``scale``."""
        return torch.randn(rows, columns, device=device) * (scale / math.sqrt(columns))

    embedding = torch.randn(vocabulary, width, device=device)
    output = matrix(vocabulary, width, 8.0)
    embedding[:, 0] = BIAS
    output[:, 0] = 0.0
    output[[token["id"] for token in added], 0] = _NEVER
    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": torch.ones(width),
        "lm_head.weight": output,
    }
    for number in range(layers):
        layer = f"model.layers.{number}"
        sharp = math.sqrt(_SHARPNESS)
        kept = {
            "self_attn.q_proj": matrix(queries, width, sharp),
            "self_attn.k_proj": matrix(values, width, sharp),
            "self_attn.v_proj": matrix(values, width),
            "self_attn.o_proj": matrix(width, queries),
            "mlp.gate_proj": matrix(middle, width),
            "mlp.up_proj": matrix(middle, width),
            "mlp.down_proj": matrix(width, middle),
        }
        kept["self_attn.o_proj"][0] = 0.0
        kept["mlp.down_proj"][0] = 0.0
        weights |= {f"{layer}.{name}.weight": each for name, each in kept.items()}
        for name, size in (("q", queries), ("k", values), ("v", values)):
            weights[f"{layer}.self_attn.{name}_proj.bias"] = torch.zeros(size)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{layer}.{name}.weight"] = torch.ones(width)
    unfinished = directory / "unfinished.safetensors"
    written = {name: each.to(kind).cpu().contiguous() for name, each in weights.items()}
    save_file(written, unfinished, metadata={"format": "pt"})
    unfinished.replace(directory / "model.safetensors")


if __name__ == "__main__":
    main()
