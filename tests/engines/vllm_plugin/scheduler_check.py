"""Runs random sessions on the scheduler of a real vLLM, with a stand-in for its model, and checks each token.

    PYTHONPATH=src PYTHON tests/engines/vllm_plugin/scheduler_check.py [--runs 100] [--policy priority]

PYTHON is one in whose environment vLLM is installed; a GPU or a model is not needed. Each run has a small KV
cache, in which sessions, whole requests, preemptions and clients that leave meet as the random numbers have
it. As with asynchronous scheduling, a step is begun before the tokens of the one before it have come.

The stand-in keeps what a model runner keeps. Its KV cache holds, for each position, a digest of all tokens up
to it, and the next token follows from that. So a token is right only if every block that it was computed from
is. With ``--idle`` the program shows instead what a step costs beside sessions that wait for their next turn,
by vLLM alone and with the plugin. It ends with 1 if it has found a fault.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import vllm
from msgspec.structs import asdict
from vllm.config import CacheConfig, LoRAConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from slipring.commands.bench.subject import machine
from slipring.engines.vllm_plugin.corrections import PLUGIN, mend

BLOCK = 4
STOP = 1
VOCABULARY = 97
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
}


class FaultError(Exception):
    """What a run has found."""


def digest_of(before: int, token: int) -> int:
    return hash((before, token))


def token_after(digest: int) -> int:
    """The likeliest token: a stop token in one of 24 cases."""
    return STOP if digest % 24 == 0 else 2 + digest % (VOCABULARY - 2)


def answer_to(context: list[int], limit: int) -> list[int]:
    """What the model says to a context."""
    digest, answer = 0, list[int]()
    for token in context:
        digest = digest_of(digest, token)
    while len(answer) < limit and STOP not in answer:
        answer.append(token_after(digest))
        digest = digest_of(digest, answer[-1])
    return answer


@dataclass(slots=True)
class Row:
    """What a model runner knows of a request."""

    tokens: list[int]
    blocks: list[int]


class Runner:
    """Stands in for vLLM's model runner, of the first or the second generation."""

    def __init__(self, *, places: int, is_second: bool) -> None:
        self.places, self.is_second = places, is_second
        self.rows: dict[str, Row] = {}
        self.memory: dict[tuple[int, int], int] = {}
        """The digest that each place of each block holds."""

    def execute(self, step: Any) -> ModelRunnerOutput:
        self._take(step)
        ids = list(step.num_scheduled_tokens)
        computed = {new.req_id: new.num_computed_tokens for new in step.scheduled_new_reqs}
        known = step.scheduled_cached_reqs
        computed |= dict(zip(known.req_ids, known.num_computed_tokens, strict=True))
        sampled = [self._run(self.rows[id], computed[id], step.num_scheduled_tokens[id]) for id in ids]
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={id: index for index, id in enumerate(ids)},
            sampled_token_ids=sampled,
            prompt_logprobs_dict={},
            pooler_output=[],
        )

    def _take(self, step: Any) -> None:
        """Keep what a step says of its requests."""
        for id in step.finished_req_ids | (step.preempted_req_ids or set() if self.is_second else set()):
            self.rows.pop(id, None)
        for new in step.scheduled_new_reqs:
            tokens = new.prefill_token_ids if self.is_second else new.prompt_token_ids
            self.rows[new.req_id] = Row(list(tokens), list(new.block_ids[0]))
        known = step.scheduled_cached_reqs
        for id, blocks in zip(known.req_ids, known.new_block_ids, strict=True):
            row = self.rows[id]
            if id in known.resumed_req_ids:
                row.blocks = []
            row.blocks += blocks[0] if blocks else []
            row.tokens = list(known.all_token_ids.get(id, row.tokens))
        if self.is_second and len(self.rows) > self.places:
            raise FaultError(f"{len(self.rows)} requests have a place in a model runner for {self.places}")

    def _run(self, row: Row, computed: int, count: int) -> list[int]:
        """Compute some positions of a request. Returns the next token, if they are the last."""
        digest = self._at(row, computed - 1) if computed else 0
        for position in range(computed, computed + count):
            if position >= len(row.tokens):
                raise FaultError("a position is computed whose token is not known")
            digest = digest_of(digest, row.tokens[position])
            self.memory[row.blocks[position // BLOCK], position % BLOCK] = digest
        if computed + count < len(row.tokens):
            return []
        row.tokens.append(token_after(digest))
        return [row.tokens[-1]]

    def _at(self, row: Row, position: int) -> int:
        return self.memory.get((row.blocks[position // BLOCK], position % BLOCK), -1)


@dataclass(eq=False, slots=True)
class Turn:
    """A prompt that was sent, and what must come."""

    expected: list[int]
    emitted: list[int] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Session:
    """A request that stays open, and its true context."""

    id: str
    context: list[int]
    turn: Turn | None
    adapter: int
    """The number of its adapter; 0: none."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How large the parts of one run are."""

    blocks: int
    places: int
    budget: int
    policy: str
    is_second: bool
    adapters: int = 0
    """Of which one is used at a time."""
    longest: int = 72


class Engine:
    """vLLM's scheduler and the stand-in, with at most two steps under way, as its engine has."""

    def __init__(self, settings: Settings, directory: str) -> None:
        self.settings = settings
        self.scheduler = scheduler_of(settings, directory)
        self.runner = Runner(places=settings.places, is_second=settings.is_second)
        self.under_way: deque[tuple[Any, ModelRunnerOutput]] = deque()
        self.hasher = get_request_block_hasher(BLOCK, sha256)

    def add(
        self, id: str, ids: list[int], limit: int, *, stays_open: bool, priority: int = 0, adapter: int = 0
    ) -> None:
        sampling = SamplingParams(max_tokens=limit, stop_token_ids=[STOP], temperature=0)
        self.scheduler.add_request(
            Request(
                request_id=id,
                prompt_token_ids=ids,
                sampling_params=sampling,
                pooling_params=None,
                priority=priority,
                lora_request=LoRARequest(str(adapter), adapter, "/nowhere") if adapter else None,
                block_hasher=self.hasher,
                resumable=stays_open,
            )
        )

    def end(self, id: str) -> None:
        self.scheduler.finish_requests(id, RequestStatus.FINISHED_ABORTED)

    def begin_step(self) -> bool:
        """Begin a step, if there is room for one more and something to do."""
        if len(self.under_way) == 2 or not self.scheduler.has_requests():
            return False
        step = self.scheduler.schedule()
        if not step.total_num_scheduled_tokens:
            self.runner._take(step)
            return False
        self.under_way.append((step, self.runner.execute(step)))
        return True

    def end_step(self) -> Iterator[tuple[str, list[int], bool]]:
        """End the step that was begun first: what each request emits, and whether that was its last."""
        if not self.under_way:
            return
        for outputs in self.scheduler.update_from_output(*self.under_way.popleft()).values():
            for each in outputs.outputs:
                yield each.request_id, list(each.new_token_ids), each.finish_reason is not None

    def left(self) -> str:
        """What is still held, in words; empty if nothing is."""
        self.begin_step()
        manager = self.scheduler.kv_cache_manager
        waiting = self.scheduler.get_request_counts()[1]
        idle = self.scheduler.num_waiting_for_streaming_input
        held = len(self.scheduler.requests), waiting, idle, manager.usage, len(self.runner.rows)
        return "" if not any(held) else f"requests, waiting, idle, KV, rows: {held}"


def scheduler_of(settings: Settings, directory: str) -> Any:
    model = ModelConfig(
        model=directory, dtype="float32", skip_tokenizer_init=True, max_model_len=settings.longest
    )
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
    cache.num_gpu_blocks = settings.blocks
    config = VllmConfig(
        model_config=model,
        cache_config=cache,
        lora_config=LoRAConfig(max_loras=1, max_cpu_loras=settings.adapters) if settings.adapters else None,
        scheduler_config=SchedulerConfig(
            max_num_seqs=settings.places,
            max_num_batched_tokens=settings.budget,
            max_model_len=settings.longest,
            enable_chunked_prefill=True,
            async_scheduling=True,
            is_encoder_decoder=False,
            policy=settings.policy,
        ),
    )
    # vLLM may choose another size for the device that it finds.
    cache.block_size = BLOCK
    attention = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    register_all_kvcache_specs(config)
    scheduler = AsyncScheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=settings.blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], attention)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
        hash_block_size=BLOCK,
        log_stats=True,
    )
    scheduler.use_v2_model_runner = settings.is_second
    return scheduler


class Run:
    """One run: clients that begin, go on and leave at random."""

    def __init__(self, seed: int, policy: str, directory: str) -> None:
        self.random = random.Random(seed)
        places = self.random.randint(4, 12)
        self.settings = Settings(
            # With one block that vLLM keeps for itself.
            blocks=self.random.choice([28, 32, 36, 44, 160]) + 1,
            places=places,
            budget=self.random.choice([places + 2, 24, 64]),
            policy=policy,
            is_second=self.random.random() < 0.5,
            adapters=self.random.choice([0, 0, 3]),
        )
        self.engine = Engine(self.settings, directory)
        self.sessions: dict[str, Session] = {}
        self.whole: dict[str, Turn] = {}
        self.seen: list[list[int]] = [[]]
        """Contexts that were sent, which other prompts begin with."""
        self.count: Counter[str] = Counter()
        self.without_progress = 0

    def go(self, actions: int) -> None:
        for _ in range(actions):
            self._act()
            self._step()
        while self._open():
            self._step()
        for session in list(self.sessions.values()):
            self._leave(session)
        while self.engine.under_way or self.engine.begin_step():
            self._end_step()
        if left := self.engine.left():
            raise FaultError(f"at the end are left {left}")

    def _open(self) -> bool:
        return bool(self.whole) or any(session.turn for session in self.sessions.values())

    def _act(self) -> None:
        """Let one client do something, or none."""
        idle = [session for session in self.sessions.values() if session.turn is None]
        act = self.random.random()
        if act < 0.25 and idle:
            self._go_on(self.random.choice(idle))
        elif act < 0.32:
            self._begin_session()
        elif act < 0.48 and len(self.whole) < 2 * self.settings.places:
            self._begin_whole()
        elif act < 0.49 and self.sessions:
            self._leave(self.random.choice(list(self.sessions.values())))
        elif act < 0.5 and self.whole:
            id = self.random.choice(list(self.whole))
            del self.whole[id]
            self.engine.end(id)
            self.count["left"] += 1

    def _ids(self, most: int) -> list[int]:
        return [self.random.randrange(2, VOCABULARY) for _ in range(self.random.randint(1, most))]

    def _room_left(self) -> int:
        """How many blocks sessions may take more of those that the plugin gives them: half of the cache, and
        never what the longest request needs."""
        blocks = self.settings.blocks - 1
        most = min(blocks // 2, blocks - self.settings.longest // BLOCK)
        return most - sum(len(session.context) // BLOCK + 1 for session in self.sessions.values())

    def _has_room(self, more: int) -> bool:
        return more // BLOCK + 1 <= self._room_left()

    def _begin_session(self) -> None:
        prompt, limit = [*self._beginning(), *self._ids(12)], self.random.choice([1, 4, 24])
        if len(self.sessions) >= self.settings.places // 2 or not self._has_room(len(prompt)):
            return
        id = f"session-{self.count['sessions']}"
        self._send(Session(id, [], None, self._adapter()), prompt, limit)
        self.count["sessions"] += 1

    def _go_on(self, session: Session) -> None:
        new, limit = self._ids(8), self.random.choice([1, 4, 24])
        # The last token was dropped, so it is sent again.
        new.insert(0, session.context.pop())
        fits = len(session.context) + len(new) + limit + 2 < self.settings.longest
        if not fits or not self._has_room(len(new)):
            self._leave(session)
            return
        self._send(session, new, limit)

    def _send(self, session: Session, new: list[int], limit: int) -> None:
        session.context += new
        session.turn = Turn(answer_to(session.context, limit))
        self.sessions[session.id] = session
        priority = 0 if self.settings.policy == "fcfs" else self.random.randint(0, 3)
        self.engine.add(session.id, new, limit, stays_open=True, priority=priority, adapter=session.adapter)
        self.count["turns"] += 1

    def _begin_whole(self) -> None:
        prompt, limit = [*self._beginning(), *self._ids(16)], self.random.choice([1, 16, 32])
        id, turn = f"whole-{self.count['whole']}", Turn(answer_to(prompt, limit))
        self.whole[id] = turn
        priority = self.random.randint(0, 3)
        self.engine.add(id, prompt, limit, stays_open=False, priority=priority, adapter=self._adapter())
        self.count["whole"] += 1

    def _adapter(self) -> int:
        return self.random.randint(0, self.settings.adapters)

    def _beginning(self) -> list[int]:
        """What another prompt began with, so that blocks of the prefix cache are used."""
        known = self.random.choice(self.seen)
        return known[: self.random.randint(0, min(len(known), 24))]

    def _leave(self, session: Session) -> None:
        del self.sessions[session.id]
        if session.turn is None and self.random.random() < 0.5:
            self.engine.add(session.id, [2], 1, stays_open=False)  # how vLLM's API process ends one
        else:
            self.engine.end(session.id)
        self.count["left"] += 1

    def _step(self) -> None:
        while self.engine.begin_step():
            self.without_progress = 0
        self._end_step()

    def _end_step(self) -> None:
        self.without_progress += 1
        if self.without_progress > 50 and self._open():
            raise FaultError("turns wait, and nothing is done")
        for id, tokens, is_last in self.engine.end_step():
            self._emitted(id, tokens, is_last=is_last)

    def _emitted(self, id: str, tokens: list[int], *, is_last: bool) -> None:
        session = self.sessions.get(id)
        turn = session.turn if session is not None else self.whole.get(id)
        if turn is None:
            if id in self.sessions and tokens:
                raise FaultError(f"{id} emits {tokens} after the end of its turn")
            return
        turn.emitted += tokens
        self.count["tokens"] += len(tokens)
        if turn.emitted != turn.expected[: len(turn.emitted)]:
            raise FaultError(f"{id} emits {turn.emitted}, not {turn.expected}")
        if not is_last:
            return
        if turn.emitted != turn.expected:
            raise FaultError(f"{id} ends with {turn.emitted}, not {turn.expected}")
        if session is None:
            del self.whole[id]
            return
        session.context += turn.emitted
        session.turn = None
        while self._room_left() < 0:
            # As the plugin does where an answer took more room than there was.
            self._leave(next(each for each in self.sessions.values() if each.turn is None))
        self.seen = [*self.seen[-20:], list(session.context)]


def preemptions_counted() -> Callable[[], int]:
    """Count preemptions from now on. Returns how many there were."""
    counted, preempt = [0], AsyncScheduler._preempt_request

    def count(self: Any, *args: Any, **named: Any) -> None:
        counted[0] += 1
        preempt(self, *args, **named)

    AsyncScheduler._preempt_request = count
    return lambda: counted[0]


def runs(options: argparse.Namespace, directory: str) -> bool:
    """Whether all runs are without a fault."""
    preemptions, total, faulty = preemptions_counted(), Counter[str](), list[int]()
    for seed in range(options.seed, options.seed + options.runs):
        run = Run(seed, options.policy, directory)
        try:
            run.go(options.actions)
        except (FaultError, AssertionError, KeyError, IndexError, RuntimeError, ValueError) as fault:
            faulty.append(seed)
            print(f"  run {seed}: {type(fault).__name__}: {fault}", flush=True)
        total += run.count
    found = {
        **{"vllm": vllm.__version__, "policy": options.policy, "plugin": not options.without},
        **{"runs": options.runs, "first seed": options.seed, "with a fault": len(faulty)},
        **{name: total[name] for name in ("turns", "sessions", "whole", "tokens", "left")},
        "preemptions": preemptions(),
    }
    print(", ".join(f"{name}: {value}" for name, value in found.items()))
    if options.record is not None:
        keep(options.record, found)
    return not faulty


def keep(path: Path, found: dict[str, Any]) -> None:
    """Put what was found into a record, in the place of what was found before in this way."""
    record = json.loads(path.read_text()) if path.exists() else {"found": []}
    known = ("vllm", "policy", "plugin")
    others = [each for each in record["found"] if any(each[name] != found[name] for name in known)]
    about = {"when": machine.now(), "machine": asdict(machine.machine()), "versions": machine.versions()}
    path.write_text(json.dumps({**about, "found": [*others, found]}, indent=1) + "\n")


def cost(options: argparse.Namespace, directory: str, idle: int) -> float:
    """How many µs a step takes that decodes for one request, beside sessions that wait."""
    settings = Settings(
        blocks=8192, places=512, budget=2048, policy=options.policy, is_second=True, longest=4096
    )
    engine = Engine(settings, directory)
    for number in range(idle):
        engine.add(f"session-{number}", [2 + number % 90] * 8, 1, stays_open=True)
    while engine.under_way or engine.begin_step():
        engine.begin_step()
        list(engine.end_step())
    times = list[float]()
    for number in range(40):
        engine.add(f"whole-{number}", [5 + number] * 8, 40, stays_open=False)
        is_open = True
        while is_open:
            begun = time.perf_counter()
            engine.begin_step()
            middle = time.perf_counter() - begun
            while engine.begin_step():
                pass
            begun = time.perf_counter()
            is_open = not any(is_last for _, _, is_last in engine.end_step())
            times.append(middle + time.perf_counter() - begun)
        while engine.under_way:
            list(engine.end_step())
    return statistics.median(times) * 1e6


def costs(options: argparse.Namespace, directory: str) -> None:
    for name in ("vLLM alone", "with the plugin"):
        if name != "vLLM alone":
            mend()
        each = [f"{idle} idle {cost(options, directory, idle):.0f} µs" for idle in (0, 64, 256)]
        print(f"vLLM {vllm.__version__}, {options.policy}, {name}: {', '.join(each)}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--actions", type=int, default=400, help="of clients in a run")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--policy", choices=["fcfs", "priority"], default="fcfs")
    parser.add_argument("--without", action="store_true", help="without the plugin's changes, as a control")
    parser.add_argument("--record", type=Path, help="keep what is found in this file")
    parser.add_argument("--idle", action="store_true", help="what waiting sessions cost")
    options = parser.parse_args()
    os.environ["VLLM_PLUGINS"] = PLUGIN
    init_none_hash(sha256)
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(CONFIG))
        if options.idle:
            costs(options, directory)
            return 0
        if not options.without:
            mend()
        return 0 if runs(options, directory) else 1


if __name__ == "__main__":
    sys.exit(main())
