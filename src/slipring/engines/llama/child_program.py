"""The child process that runs the embedded llama.cpp: ``python -P child_program.py``.

Reads its settings as one line of JSON from standard input, serves llama-server's native API on a free port
of the loopback interface, and prints the address. It exits when its standard input is closed, which happens
however the parent ends. A crash in native code ends only this process.
"""

import json
import os
import shutil
import signal
import sys
from typing import Any

_LONGEST_DRAFT = 64
"""The most tokens that llama.cpp drafts at once, by its defaults."""


def main() -> None:
    # Ctrl-C and a closed terminal signal the whole process group, and a service manager may signal every
    # process of a service. Running responses still need this one, so only the parent may end it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    # Not as arguments, which every user of the machine can read: they contain the API key.
    settings: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    os.environ["LLAMA_MEDIA_MARKER"] = settings["media_marker"]  # the same after a restart
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings["path"]
    if settings["alias"]:
        params.model_alias = {settings["alias"]}
    params.n_ctx = settings["context"] * settings["slots"]
    params.n_parallel = settings["slots"]
    params.n_gpu_layers = settings["gpu_layers"]
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    # llama.cpp checks for cancellation between batches: small ones keep it prompt.
    params.n_batch = params.n_ubatch = settings["chunk"]
    if settings["spec"]:
        name = f"COMMON_SPECULATIVE_TYPE_{settings['spec'].replace('-', '_').upper()}"
        params.speculative.types = [getattr(xllamacpp.common_speculative_type, name)]
        # llama.cpp fails if one batch does not hold the drafts of all slots.
        params.n_batch = max(settings["chunk"], settings["slots"] * (_LONGEST_DRAFT + 1))
    if settings["projector"]:
        params.mmproj.path = settings["projector"]
        params.mmproj_use_gpu = settings["gpu_layers"] > 0
    params.kv_unified = False
    # If these were on, a slot would lose its context as soon as another slot runs.
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
        shutil.rmtree(settings["directory"], ignore_errors=True)  # the parent may have been killed
    os._exit(0)  # native threads still run; there is nothing to save


if __name__ == "__main__":
    main()
