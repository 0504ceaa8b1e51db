"""The child process that runs the embedded llama.cpp: ``python -m slipring.engines.llama.child``.

Serves llama-server's native API on a free port of the loopback and prints the address. It lives as long as
its standard input is open, so that it ends with its parent however the parent ends. A crash in native code is
a crash of this process and of nothing else.
"""

import json
import os
import shutil
import signal
import sys
from typing import Any


def main() -> None:
    # Ctrl-C and the end of a terminal reach everybody there, a service manager may tell all processes of a
    # service to stop. Responses that still run need this one; it ends when its parent has let it go.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    # By standard input rather than as arguments, which everybody on the machine can read.
    settings: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["path"]
    params.n_ctx = settings["context"] * settings["slots"]
    params.n_parallel = settings["slots"]
    params.n_gpu_layers = settings["gpu_layers"]
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    # A cancel is seen between two batches: small ones keep it prompt.
    params.n_batch = params.n_ubatch = settings["chunk"]
    params.kv_unified = False
    # With these on, a slot would lose its context as soon as another one works.
    params.cache_idle_slots = False
    params.cache_ram_mib = 0
    params.ctx_shift = False
    params.warmup = False
    params.ui = False
    if settings["directory"]:
        params.slot_save_path = settings["directory"] + "/"
    params.api_keys = [settings["key"]]
    params.port = 0
    server = xllamacpp.Server(params)
    print(json.dumps({"url": server.listening_address}), flush=True)
    sys.stdin.buffer.read()
    if settings["directory"]:
        shutil.rmtree(settings["directory"], ignore_errors=True)  # a parent that was killed cannot
    os._exit(0)  # native threads are still running; there is nothing to save


if __name__ == "__main__":
    main()
