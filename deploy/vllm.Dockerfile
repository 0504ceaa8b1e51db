# vLLM with slipring's plugin, for sessions: docs/engines/vllm-sessions.md. Build the wheel first (make dist), then, from the root of
# the project: docker build -f deploy/vllm.Dockerfile -t vllm-slipring .
FROM vllm/vllm-openai:v0.32.0
# The plugin needs nothing that vLLM has not installed.
COPY dist/*.whl /tmp/slipring/
RUN python3 -m pip install --no-cache-dir --no-deps /tmp/slipring/*.whl && rm -r /tmp/slipring
ENV VLLM_PLUGINS=slipring_sessions
