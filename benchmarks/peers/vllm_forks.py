"""Starts vLLM servers of the CPU build by forking one process that has imported vLLM.

Most of a start of vLLM is imports, for each of its processes: a minute of CPU time. Forks have them from the
beginning, so that several servers start in the time of one. Runs with the Python of vLLM's environment. Each
line of standard input is a JSON object with the arguments of a server and the file for its output; the answer
is its process id, which is also that of its process group.
"""

import importlib
import json
import multiprocessing
import os
import runpy
import signal
import sys
import traceback
from contextlib import suppress
from functools import partial

_SERVER = "vllm.entrypoints.openai.api_server"
_STARTING = ("vllm.v1.engine.utils", "vllm.v1.executor.multiproc_executor")
_IMPORTED = (
    _SERVER,
    "vllm.v1.engine.core",
    *_STARTING,
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.qwen2",
)


def main() -> None:
    for name in _IMPORTED:
        importlib.import_module(name)
    # vLLM spawns the processes of its engine on CPUs, which would import everything again.
    for name in _STARTING:
        vars(sys.modules[name])["get_mp_context"] = partial(multiprocessing.get_context, "fork")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that have ended are gone
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if not pid:
            _serve(asked["arguments"], asked["log"])
        _lead_group(pid)
        print(pid, flush=True)


def _lead_group(pid: int) -> None:
    """Give a process a group of its own. Both it and its parent do so: whichever comes first."""
    with suppress(OSError):
        os.setpgid(pid, pid)


def _serve(arguments: list[str], log: str) -> None:
    _lead_group(0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
        os.dup2(file, number)
    sys.argv = [_SERVER, *arguments]
    try:
        runpy.run_module(_SERVER, run_name="__main__")
    except BaseException:  # it must not go on with the loop of the process that it is a fork of
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
