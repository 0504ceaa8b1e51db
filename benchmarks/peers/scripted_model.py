"""A logits processor of vLLM that makes a model give scripted answers. Runs in vLLM's environment.

    SCRIPT=FILE COMPUTED=FILE vllm serve … --logits-processors scripted_model:ScriptedModel

Everything but the choice of the next token is the engine's own work: it prefills, caches and samples as with
any model. Which answer a prompt gets follows from the prompt: from the last of the conversations in the
script whose ``mark`` occurs in it, and from how many answers are in it.

The script is JSON: conversations, each a ``mark`` (a list of ids) and ``answers`` (for each, the ids that
follow a prompt that has opened a thought, and those that follow one that has not), ``opening`` (the ids that
begin an answer in a prompt), ``thinking`` (those at the end of a prompt that has opened a thought), and
``end`` (the id that ends an answer).

Also writes the number of tokens that the model has computed to the file ``COMPUTED``, step by step: vLLM's
metrics leave out what is appended to a request that stays open.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality
from vllm.v1.worker.gpu_worker import Worker

_NEVER = float("-inf")


def count_computed(path: Path) -> None:
    """Let the worker of this process write how many tokens it has computed so far."""
    execute, total, unfinished = Worker.execute_model, 0, path.with_suffix(".unfinished")

    def counted(self: Worker, scheduler_output: Any) -> Any:
        nonlocal total
        total += scheduler_output.total_num_scheduled_tokens
        unfinished.write_text(str(total))
        unfinished.replace(path)
        return execute(self, scheduler_output)

    Worker.execute_model = counted


class ScriptedModel(LogitsProcessor):  # type: ignore[misc]  # vLLM is not installed here
    """Lets each request of a batch emit its answer."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        count_computed(Path(os.environ["COMPUTED"]))
        self._script = json.loads(Path(os.environ["SCRIPT"]).read_text())
        self._rows: dict[int, tuple[list[int], list[int]]] = {}
        """By place in the batch: the ids of the answer, and those emitted so far."""

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for index in batch_update.removed:
            self._rows.pop(index, None)
        for index, _, prompt, emitted in batch_update.added:
            self._rows[index] = self._answer(prompt or []), emitted
        for source, target, direction in batch_update.moved:
            moved, other = self._rows.pop(source, None), self._rows.pop(target, None)
            if moved is not None:
                self._rows[target] = moved
            if other is not None and direction is MoveDirectionality.SWAP:
                self._rows[source] = other

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, (answer, emitted) in self._rows.items():
            next_id = answer[len(emitted)] if len(emitted) < len(answer) else self._script["end"]
            logits[row] = _NEVER
            logits[row, next_id] = 0.0
        return logits

    def _answer(self, prompt: list[int]) -> list[int]:
        script = self._script
        given = _count(prompt, script["opening"]) - 1
        thinking: list[int] = script["thinking"]
        kind = "opened" if prompt[-len(thinking) :] == thinking else "unopened"
        for conversation in reversed(script["conversations"]):
            if _count(prompt, conversation["mark"]) and given < len(conversation["answers"]):
                answer: list[int] = conversation["answers"][given][kind]
                return answer
        return []


def _count(ids: list[int], wanted: list[int]) -> int:
    """How often these ids occur."""
    first, size, found, at = wanted[0], len(wanted), 0, -1
    while True:
        try:
            at = ids.index(first, at + 1)
        except ValueError:
            return found
        found += ids[at : at + size] == wanted
