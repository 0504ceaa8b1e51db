"""Writes random weights for the model whose configuration is in a directory. Runs in vLLM's environment.

    python benchmarks/peers/weights.py DIRECTORY

The first element of every embedding is the same large number, and no layer changes it: multiplied with the
first column of the output matrix, it is a bias for each token, which keeps control tokens out of answers.

Heads attend to a few tokens each, by their content and their distance: an answer depends on all of its
context, and one token more or less changes it.

A model that sees answers with plain words, of which its tokenizer makes the same tokens again, and ends its
answers: a history that is sent as text has the ids of the chain.
"""

import json
import math
import re
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

BIAS = 8.0
_SHARPNESS = 3.0
"""The standard deviation of a head's scores."""
_NEVER = -1e4
_WORD = re.compile(" [a-z]{3,}")
_MOST_WORDS = 4000
_END = 2.2
"""How much larger the row of the end token is than that of a word. The likeliest of all words is rarely less
likely: about one token in twenty ends an answer."""


def plain_words(tokenizer: Tokenizer) -> list[int]:
    """The first tokens of a vocabulary that are words, each of which is one token wherever it stands."""
    found = []
    for id in range(tokenizer.get_vocab_size()):
        word = tokenizer.decode([id])
        if _WORD.fullmatch(word) and tokenizer.encode(word).ids == [id]:
            found.append(id)
        if len(found) == _MOST_WORDS:
            break
    return found


def vision_weights(config: dict[str, int], width: int, scale: int) -> dict[str, torch.Tensor]:
    """The weights of a model's eyes, as Idefics 3 has them: an encoder, and the projection of squares of
    ``scale`` patches to vectors of ``width`` elements."""
    size, patch, middle = config["hidden_size"], config["patch_size"], config["intermediate_size"]
    tower, places = "model.vision_model", (config["image_size"] // patch) ** 2
    weights = {
        f"{tower}.embeddings.patch_embedding.weight": torch.randn(size, 3, patch, patch),
        f"{tower}.embeddings.patch_embedding.bias": torch.zeros(size),
        f"{tower}.embeddings.position_embedding.weight": torch.randn(places, size),
        "model.connector.modality_projection.proj.weight": torch.randn(width, size * scale**2) / size,
    }
    shapes: dict[str, tuple[int, ...]] = {f"{tower}.post_layernorm": (size,)}
    for number in range(config["num_hidden_layers"]):
        layer = f"{tower}.encoder.layers.{number}"
        shapes |= {f"{layer}.self_attn.{name}_proj": (size, size) for name in ("q", "k", "v", "out")}
        shapes |= {f"{layer}.mlp.fc1": (middle, size), f"{layer}.mlp.fc2": (size, middle)}
        shapes |= {f"{layer}.layer_norm{which}": (size,) for which in (1, 2)}
    for name, shape in shapes.items():
        is_norm = len(shape) == 1
        weights[f"{name}.weight"] = torch.ones(size) if is_norm else torch.randn(shape) / math.sqrt(size)
        weights[f"{name}.bias"] = torch.zeros(shape[0])
    return weights


def main() -> None:
    directory = Path(sys.argv[1])
    whole = json.loads((directory / "config.json").read_text())
    config = whole.get("text_config", whole)
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
    if "vision_config" in whole:
        words = plain_words(Tokenizer.from_file(str(directory / "tokenizer.json")))
        end = config["eos_token_id"]
        output[end] *= _END
        output[[id for id in range(vocabulary) if id not in {*words, end}], 0] = _NEVER
    else:
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
    if "vision_config" in whole:
        # Llama has no biases here, and Idefics 3 has another name for the model of texts.
        weights = {
            name.replace("model.", "model.text_model.", 1) if name.startswith("model.") else name: each
            for name, each in weights.items()
            if not name.endswith(".bias")
        }
        weights |= vision_weights(whole["vision_config"], width, whole["scale_factor"])
    unfinished = directory / "unfinished.safetensors"
    written = {name: each.to(kind).cpu().contiguous() for name, each in weights.items()}
    save_file(written, unfinished, metadata={"format": "pt"})
    unfinished.replace(directory / "model.safetensors")


if __name__ == "__main__":
    main()
