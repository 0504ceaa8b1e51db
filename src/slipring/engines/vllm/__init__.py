"""The vllm engine, and the plugin that vLLM loads into its own process."""
