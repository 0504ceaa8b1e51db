"""The sglang engine: token ids to an SGLang server."""
