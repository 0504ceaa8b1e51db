"""Writes random weights for the model whose configuration is in a directory. Runs in vLLM's environment.

    python benchmarks/peers/weights.py DIRECTORY

The first element of every embedding is the same large number, and no layer changes it: multiplied with the
first column of the output matrix, it is a bias for each token, which keeps control tokens out of answers.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

BIAS = 8.0


def main() -> None:
    directory = Path(sys.argv[1])
    config = json.loads((directory / "config.json").read_text())
    added = json.loads((directory / "tokenizer.json").read_text())["added_tokens"]
    torch.manual_seed(7)
    width, middle, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    embedding, output = torch.randn(vocabulary, width), torch.randn(vocabulary, width)
    embedding[:, 0] = BIAS
    output[:, 0] = 0.0
    output[[token["id"] for token in added], 0] = -BIAS
    weights = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": torch.ones(width),
        "lm_head.weight": output,
    }
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        for name in ("q", "k", "v", "o"):
            weights[f"{layer}.self_attn.{name}_proj.weight"] = 0.2 * torch.randn(width, width)
        for name in ("q", "k", "v"):
            weights[f"{layer}.self_attn.{name}_proj.bias"] = torch.zeros(width)
        for name in ("gate", "up"):
            weights[f"{layer}.mlp.{name}_proj.weight"] = 0.2 * torch.randn(middle, width)
        weights[f"{layer}.mlp.down_proj.weight"] = 0.2 * torch.randn(width, middle)
        weights[f"{layer}.self_attn.o_proj.weight"][0] = 0.0
        weights[f"{layer}.mlp.down_proj.weight"][0] = 0.0
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{layer}.{name}.weight"] = torch.ones(width)
    unfinished = directory / "unfinished.safetensors"
    save_file(weights, unfinished, metadata={"format": "pt"})
    unfinished.replace(directory / "model.safetensors")


if __name__ == "__main__":
    main()
