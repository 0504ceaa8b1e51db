"""The llama engine: llama.cpp by token ids."""
