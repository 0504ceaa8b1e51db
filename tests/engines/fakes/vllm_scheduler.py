"""How vLLM up to 0.31 schedules a request that stays open, as far as ``session_scheduler`` changes it.

As with asynchronous scheduling, a step is begun before the token of the step before it has come. The engine
stops as a whole where vLLM's does.
"""

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

STOP = 0
BLOCK = 4


@dataclass
class Request:
    prompt_token_ids: list[int]
    max_tokens: int
    resumable: bool = True
    all_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_output_placeholders: int = 0
    async_tokens_to_discard: int = 0
    block_hashes: list[tuple[int, ...]] = field(default_factory=list)
    is_running: bool = True

    def __post_init__(self) -> None:
        self.all_token_ids = list(self.prompt_token_ids)
        self.update_block_hashes()

    @property
    def outputs(self) -> int:
        return len(self.all_token_ids) - len(self.prompt_token_ids)

    def update_block_hashes(self) -> None:
        """The hash of a block stands for all tokens up to its end."""
        for end in range((len(self.block_hashes) + 1) * BLOCK, len(self.all_token_ids) + 1, BLOCK):
            self.block_hashes.append(tuple(self.all_token_ids[:end]))


class Scheduler:
    """One request, of which at most two steps are under way at a time."""

    hash_block_size = BLOCK

    def __init__(self, request: Request) -> None:
        self.request = request
        self.under_way: deque[int] = deque()
        self.computed: list[int] = []
        """The tokens whose KV the engine holds, as the model has read them."""

    def run(self, *sampled: int) -> list[int]:
        """Run all steps that can be begun; the model samples these tokens. Returns what is emitted."""
        tokens, emitted = iter(sampled), list[int]()
        while True:
            while len(self.under_way) < 2 and self._begin():
                self.under_way.append(next(tokens))
            if not self.under_way:
                return emitted
            emitted += self._end(self.under_way.popleft())

    def append(self, ids: list[int], max_tokens: int) -> None:
        """The next turn."""
        self._update_request_as_session(
            self.request, SimpleNamespace(prompt_token_ids=ids, max_tokens=max_tokens)
        )
        self.request.is_running = True

    def _begin(self) -> bool:
        request = self.request
        will_emit = request.outputs + request.num_output_placeholders
        if not request.is_running or (request.num_output_placeholders and will_emit >= request.max_tokens):
            return False
        request.num_computed_tokens = len(request.all_token_ids) + request.num_output_placeholders
        request.num_output_placeholders += 1
        return True

    def _end(self, token: int) -> list[int]:
        request = self.request
        if request.async_tokens_to_discard:
            request.async_tokens_to_discard -= 1
            return []
        request.all_token_ids.append(token)
        request.update_block_hashes()
        request.num_output_placeholders -= 1
        if token == STOP or request.outputs >= request.max_tokens:
            assert request.is_running, "the engine ends: a request is queued twice"
            self._handle_stopped_request(request)
        return [token]

    def _handle_stopped_request(self, request: Any) -> bool:
        request.is_running = False
        return False

    def _update_request_as_session(self, session: Any, update: Any) -> None:
        del session.all_token_ids[session.num_computed_tokens :]
        session.all_token_ids += update.prompt_token_ids
        session.prompt_token_ids = list(session.all_token_ids)
        session.update_block_hashes()
