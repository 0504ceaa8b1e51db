"""Whether a vLLM has what slipring's plugin changes and uses in it, read from its source without running it.

``python -m tests.engines.vllm_plugin.source_check DIRECTORY …`` takes directories that have vLLM's package in
them: a checkout, or an environment's ``site-packages``. It prints what is missing, and the digests of the
functions that are changed or relied on where they are not known. It ends with an error if something is
missing, or if a function is another one than in the same version when the changes were written.
"""

import argparse
import ast
import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Used:
    """What is used of one class."""

    file: str
    name: str
    functions: tuple[str, ...] = ()
    """With their parameters: what the change calls them with."""
    attributes: tuple[str, ...] = ()
    """Fields of the class, its properties, or what its methods assign to."""


USED = (
    Used(
        "v1/core/sched/scheduler.py",
        "Scheduler",
        (
            "_enqueue_waiting_request(self, request)",
            "_handle_stopped_request(self, request)",
            "_update_request_as_session(self, session, update)",
            "get_num_unfinished_requests(self)",
            "schedule(self)",
        ),
        ("connector", "num_waiting_for_streaming_input"),
    ),
    Used(
        "v1/request.py",
        "StreamingUpdate",
        ("from_request(cls, request)",),
        ("max_tokens", "prompt_token_ids", "sampling_params"),
    ),
    Used(
        "v1/request.py",
        "Request",
        (),
        (
            *("block_hashes", "max_tokens", "num_computed_tokens", "num_output_placeholders"),
            *("lora_request", "num_tokens", "resumable", "status", "structured_output_request"),
        ),
    ),
    Used(
        "v1/request.py",
        "RequestStatus",
        (),
        ("WAITING", "WAITING_FOR_STREAMING_REQ", "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR"),
    ),
    Used("v1/structured_output/request.py", "StructuredOutputRequest", ("is_grammar_ready(self)",)),
    Used(
        "v1/engine/output_processor.py",
        "OutputProcessor",
        ("_update_streaming_request_state(self, req_state, request, prompt)",),
        ("stream_interval", "tokenizer"),
    ),
    Used(
        "v1/engine/output_processor.py",
        "RequestState",
        (
            "from_new_request(cls, tokenizer, request, prompt, parent_req, request_index, queue, log_stats,"
            " stream_interval)",
        ),
        ("detokenizer", "input_chunk_queue", "logprobs_processor", "sent_tokens_offset"),
    ),
    Used("v1/worker/worker_base.py", "WorkerWrapperBase", ("init_device(self)",), ("worker",)),
    Used(
        "v1/worker/gpu_model_runner.py",
        "GPUModelRunner",
        ("_update_streaming_request(self, req_id, new_req_data)",),
        ("device",),
    ),
    Used("v1/worker/gpu_input_batch.py", "CachedRequestState", (), ("generator",)),
    Used("sampling_params.py", "SamplingParams", ("sampling_type(self)",), ("seed", "structured_outputs")),
    Used("sampling_params.py", "SamplingType", (), ("RANDOM_SEED",)),
    Used("sampling_params.py", "RequestOutputKind", (), ("DELTA",)),
    Used("engine/protocol.py", "StreamingInput", (), ("prompt", "sampling_params")),
    Used("config/parallel.py", "ParallelConfig", (), ("_api_process_count", "data_parallel_size")),
    Used("config/cache.py", "CacheConfig", (), ("block_size", "num_gpu_blocks")),
    Used(
        "config/model.py",
        "ModelConfig",
        ("get_diff_sampling_param(self)",),
        ("has_inner_state", "hf_text_config", "is_hybrid", "max_model_len"),
    ),
    Used("config/scheduler.py", "SchedulerConfig", (), ("max_num_seqs", "scheduler_cls")),
)

ONLY = {
    "0.26": {"Request": ("async_tokens_to_discard",), "Scheduler": ("hash_block_size", "skipped_waiting")}
}
"""What is used of some versions only, by their first numbers."""

_SINCE_26 = {
    "StreamingUpdate.from_request": "011248045f99c57f",
    "StructuredOutputRequest.is_grammar_ready": "6e869bd1becee217",
    "OutputProcessor._update_streaming_request_state": "359646547f51ac10",
    "WorkerWrapperBase.init_device": "fb42ba49ac0f4bcf",
    "GPUModelRunner._update_streaming_request": "6b096065b2197442",
    "SamplingParams.sampling_type": "379feb2b8a2cb25f",
}
"""Of functions that are the same in all versions that sessions are right with."""
KNOWN = {
    "0.26.0": {
        **_SINCE_26,
        "Scheduler._enqueue_waiting_request": "1745ae459119cb24",
        "Scheduler.get_num_unfinished_requests": "9666fc250ce48746",
        "Scheduler._handle_stopped_request": "cbd534b909d35cfe",
        "Scheduler._update_request_as_session": "a68fdc68a3b717ef",
        "Scheduler.schedule": "de2e3f6c196a39a3",
        "RequestState.from_new_request": "e2331f96c7e0ec13",
        "ModelConfig.get_diff_sampling_param": "566e9b9a2d85dc8c",
    },
    "0.32.0": {
        **_SINCE_26,
        "Scheduler._enqueue_waiting_request": "26c2fefef6eee94a",
        "Scheduler.get_num_unfinished_requests": "10b9c6abdf31940f",
        "Scheduler._handle_stopped_request": "9495c48793c74280",
        "Scheduler._update_request_as_session": "ec92db8b765f6bdd",
        "Scheduler.schedule": "cf77c8a1a738767b",
        "RequestState.from_new_request": "371a6fd95e6c3d1e",
        "ModelConfig.get_diff_sampling_param": "7b4f292a705e115f",
    },
}
"""The digests of the functions, by version: those that the changes were written for."""


class Found:
    """A class in a source file, with what its bases in the same file have."""

    def __init__(self, module: ast.Module, name: str) -> None:
        classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
        self.functions: dict[str, ast.FunctionDef] = {}
        self.attributes: set[str] = set()
        self.is_there = name in classes
        waiting = [name]
        while waiting:
            node = classes.get(waiting.pop())
            if node is not None:
                waiting += [base.id for base in node.bases if isinstance(base, ast.Name)]
                self._read(node)

    def _read(self, node: ast.ClassDef) -> None:
        for each in node.body:
            if isinstance(each, ast.FunctionDef):
                self.functions.setdefault(each.name, each)
            elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                self.attributes.add(each.target.id)
            elif isinstance(each, ast.Assign):
                self.attributes |= {target.id for target in each.targets if isinstance(target, ast.Name)}
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
                self.attributes.add(inner.attr)
        self.attributes |= self.functions.keys()


def faults_of(package: Path, version: str) -> tuple[list[str], dict[str, str]]:
    """What is missing in a package, and the digests of the functions that are there."""
    faults: list[str] = []
    digests: dict[str, str] = {}
    only = next((more for numbers, more in ONLY.items() if version.startswith(numbers + ".")), {})
    for used in USED:
        try:
            module = ast.parse((package / used.file).read_text())
        except OSError:
            faults.append(f"{used.file} is not there")
            continue
        found = Found(module, used.name)
        if not found.is_there:
            faults.append(f"{used.file}: no class {used.name}")
            continue
        missing = {*used.attributes, *only.get(used.name, ())} - found.attributes
        faults += [f"{used.file}: {used.name} has no {name}" for name in sorted(missing)]
        for called in used.functions:
            name, _, rest = called.partition("(")
            function = found.functions.get(name)
            if function is None:
                faults.append(f"{used.file}: {used.name} has no function {name}")
                continue
            faults += [f"{used.file}: {used.name}.{called}: {why}" for why in _misfits(function, rest)]
            digests[f"{used.name}.{name}"] = _digest(function)
    return faults, digests


def _misfits(function: ast.FunctionDef, parameters: str) -> list[str]:
    """Why a function cannot be called with these parameters."""
    given = [name.strip() for name in parameters.rstrip(")").split(",")]
    arguments = function.args
    positional = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    known = {*positional, *(each.arg for each in arguments.kwonlyargs)}
    required = positional[: len(positional) - len(arguments.defaults)]
    required += [
        each.arg
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    ]
    found = [f"it has no {name}" for name in given if name not in known]
    return found + [f"it needs {name}" for name in required if name not in given]


def _digest(function: ast.FunctionDef) -> str:
    """Of what a function does: its text without comments, docstring and layout."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    text = "\n".join(ast.unparse(each) for each in body)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def version_of(directory: Path, given: str | None) -> str:
    if given is not None:
        return given
    for each in directory.glob("vllm*.dist-info"):
        if match := re.match(r"vllm(?:_cpu)?-(\d+\.\d+\.\d+)", each.name):
            return match[1]
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="+")
    parser.add_argument("--version", help="of a checkout; an installed package has it in its metadata")
    options = parser.parse_args()
    is_right = True
    for directory in options.directory:
        version = version_of(directory, options.version)
        faults, digests = faults_of(directory / "vllm", version)
        known = KNOWN.get(version, {})
        faults += [
            f"{name} is not what it was: {digests[name]}, not {digest}"
            for name, digest in known.items()
            if name in digests and digests[name] != digest
        ]
        print(f"vLLM {version or '(version not known)'} in {directory}: {len(faults)} faults")
        for fault in faults:
            print(f"  {fault}")
        if not known:
            for name, digest in digests.items():
                print(f'  "{name}": "{digest}",')
        is_right = is_right and not faults
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
