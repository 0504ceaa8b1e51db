"""Runs llama-server as its users do: with its defaults, and with its metrics. See ``servers.llama_server``.

Reads its settings as one line of JSON from standard input, and prints its address. Ends when its standard
input is closed.
"""

import json
import os
import sys

import xllamacpp


def main() -> None:
    settings = json.loads(sys.stdin.buffer.readline())
    params = xllamacpp.CommonParams()
    params.model.path = settings["path"]
    params.n_ctx = settings["context"] * settings["slots"]
    params.n_parallel = settings["slots"]
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    if settings["embedded"]:  # as slipring runs it
        params.kv_unified = params.cache_idle_slots = False
        params.cache_ram_mib = 0
    params.endpoint_metrics = True
    params.warmup = params.ui = False
    params.slot_save_path = settings["directory"] + "/"
    params.api_keys = [settings["key"]]
    params.port = 0
    server = xllamacpp.Server(params)
    print(json.dumps({"url": server.listening_address}), flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # native threads still run; there is nothing to save


if __name__ == "__main__":
    main()
