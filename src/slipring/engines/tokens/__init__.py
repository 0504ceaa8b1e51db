"""Engines that exchange token ids with their server: vLLM, SGLang, and the parts that llama shares."""
