"""An endpoint plugin of vLLM: sessions, in which the engine keeps the context of a chain between its turns.

Runs in the API process of a vLLM server, not in slipring's. vLLM loads it if slipring is installed beside it
and ``VLLM_PLUGINS`` names it. A turn sends the ids that its session does not hold; vLLM appends them to a
request that stays open (``StreamingInput``), with its KV.

vLLM drops the last id that a turn has emitted, because it was never computed. So after each turn a session
holds the ids of its prompts and all but the last of those that were emitted. A turn says how many ids it
expects to be held, and is refused if there are more or fewer.

Needs nothing of slipring but this package, and nothing beyond what vLLM installs.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from slipring.engines.vllm_plugin.corrections import PLUGIN
from slipring.engines.vllm_plugin.replica_header import Replica, ReplicaHeader
from slipring.engines.vllm_plugin.session_versions import fault_of, missing_of

log = logging.getLogger("vllm.slipring")

PATH = "/v1/slipring/sessions"
"""Below ``/v1``, where vLLM asks for its key."""
_LONGEST_IDLE_S = 86_400.0
_SPARED_S = 60.0
"""A session that has been idle for no longer is not ended for another's sake."""
_SETTLING_S = 1.0
"""How long slipring servers have to end sessions of their choice, where answers took too much room: each
knows which of its own it needs least. If this process chose at once, two would be lost for one."""
_OWN = ("seed", "logit_bias", "logprobs", "structured_outputs")
_LEAST_LOGPROB = -9999.0
"""What stands for minus infinity in JSON, as in vLLM's own API."""
_ENDS = ("stop", "length")
"""The regular ends of a turn. After any other vLLM has dropped the request."""


class Sampling(Struct, forbid_unknown_fields=True):
    """The sampling of one turn, by the names of vLLM. What is not given is as the model's authors
    recommend."""

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] = []
    detokenize: bool = True
    seed: int | None = None
    logit_bias: dict[int, float] | None = None
    logprobs: int | None = None
    structured_outputs: dict[str, Any] | None = None

    def own(self) -> list[str]:
        """The settings that vLLM by itself reads from the first turn of a session only."""
        return [name for name in _OWN if getattr(self, name) is not None]


class Turn(Struct, forbid_unknown_fields=True):
    """The body of a request for one turn."""

    session: str
    held: int
    """How many ids the session holds; 0 opens it."""
    prompt: list[int]
    sampling: Sampling
    model: str = ""
    """The name of the model or of an adapter; without one, the model."""
    cache_salt: str = ""
    priority: int = 0
    idle_s: float = 600.0


class TurnRefused(Exception):
    """A turn that is not begun."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Limits(Struct, frozen=True):
    """What all sessions of a process may take."""

    sessions: int
    tokens: int
    """What sessions hold cannot be used for anything else, so the longest request must fit beside them."""
    refused: str = ""
    """Why there are none, if so."""
    whole: str = ""
    """Why a turn cannot have settings of its own in a session, if so."""


class Session:
    """A request that stays open."""

    def __init__(self, id: str, model: str, idle_s: float) -> None:
        self.id = id
        self.model = model
        self.idle_s = idle_s
        self.held = 0
        """Ids that the engine holds, or will hold when the running turn has been prefilled."""
        self.turns = 0
        """How many turns have begun. The next may begin before the request for the last has returned, which
        has sent all of its answer: it must leave that turn alone."""
        self.is_busy = True
        """A turn has begun, and not ended."""
        self.is_answered = False
        """The request for that turn is being answered. The session may be ended before that."""
        self.inputs: asyncio.Queue[Any] = asyncio.Queue()
        self.outputs: AsyncGenerator[Any, None]
        self.idle_since = 0.0
        self.expiry: asyncio.TimerHandle | None = None


class Sessions:
    """The open sessions of one API process."""

    def __init__(self, limits: Limits, generate: Callable[[Turn, AsyncIterator[Any]], Any]) -> None:
        """``generate``: begins a request of the engine for the first turn of a session, whose inputs it reads
        from the iterator."""
        self.limits = limits
        self._generate = generate
        self.opened = 0
        """How many sessions were opened since the start."""
        self.continued = 0
        """How many turns went on in a session that was open."""
        self._open: dict[str, Session] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._settling: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def held_tokens(self) -> int:
        return sum(session.held for session in self._open.values())

    def begin(self, turn: Turn, make_input: Callable[[Turn], Any]) -> Session:
        """Append a turn's ids to its session, which is opened if need be. Raises ``TurnRefused``."""
        session = self._open.get(turn.session)
        if not turn.prompt:
            raise TurnRefused(400, "A turn needs at least one id.")
        if self.limits.whole and (own := turn.sampling.own()):
            raise TurnRefused(400, f"A turn cannot have its own {', '.join(own)}: {self.limits.whole}.")
        if session is None:
            is_known = not turn.held
        else:
            is_known = turn.held == session.held and turn.model == session.model and not session.is_busy
        if not is_known:
            raise TurnRefused(404, "There is no such session, or its context is another one.")
        made = make_input(turn)
        self._make_room(session, len(turn.prompt))
        if session is None:
            session = self._opened(turn)
            self.opened += 1
        else:
            self.continued += 1
        session.is_busy = True
        session.turns += 1
        session.held += len(turn.prompt)
        if session.expiry is not None:
            session.expiry.cancel()
        session.inputs.put_nowait(made)
        return session

    def _make_room(self, session: Session | None, tokens: int) -> None:
        """End idle sessions until so many ids are within bounds, in a session or a new one. Raises
        ``TurnRefused``, and ends none, if that would not be enough."""
        idle, ending = self._long_idle(session), list[Session]()
        most, count = self.limits.sessions, len(self._open)
        held = self.held_tokens + tokens
        while (is_one_too_many := session is None and count >= most) or held > self.limits.tokens:
            if not idle:
                asked = "another session" if is_one_too_many else "so many ids"
                raise TurnRefused(400, f"There is no room for {asked}.")
            ending.append(longest := idle.pop())
            count, held = count - 1, held - longest.held
        for each in ending:
            self.end(each.id)

    def _long_idle(self, asking: Session | None) -> list[Session]:
        """The sessions beside the one that asks that have been idle for long, the longest last. They may be
        of another slipring server, which will send their next turns whole."""
        latest = asyncio.get_running_loop().time() - _SPARED_S
        idle = [
            each
            for each in self._open.values()
            if not each.is_busy and each is not asking and each.idle_since <= latest
        ]
        return sorted(idle, key=lambda session: session.idle_since, reverse=True)

    def _opened(self, turn: Turn) -> Session:
        session = Session(turn.session, turn.model, min(turn.idle_s, _LONGEST_IDLE_S))

        async def inputs() -> AsyncIterator[Any]:
            while True:
                yield await session.inputs.get()

        session.outputs = self._generate(turn, inputs())
        self._open[session.id] = session
        return session

    def answer(self, session: Session) -> bool:
        """The request for a turn is being answered. Returns False if the session was ended before; then its
        generator is being closed."""
        session.is_answered = self._open.get(session.id) is session
        return session.is_answered

    def complete(self, session: Session, emitted: int) -> None:
        """End a turn that has emitted so many ids. A session that was ended meanwhile stays busy, so that the
        request which answers the turn closes it."""
        if self._open.get(session.id) is not session:
            return
        session.held += max(emitted - 1, 0)
        session.is_busy = session.is_answered = False
        self._expire_later(session)
        if self._settling is None and self.held_tokens > self.limits.tokens:
            self._settling = asyncio.get_running_loop().call_later(_SETTLING_S, self._keep_limit)

    def _keep_limit(self) -> None:
        """End idle sessions, the longest idle first, until all hold no more than they may. Answers can take
        them beyond that, and slipring may have ended too few. vLLM takes no blocks from an idle session, so
        other requests would wait for them."""
        self._settling = None
        idle = (each for each in self._open.values() if not each.is_busy)
        for each in sorted(idle, key=lambda session: session.idle_since):
            if self.held_tokens <= self.limits.tokens:
                return
            self.end(each.id)

    def abandon(self, session: Session, turn: int) -> None:
        """End a session in which the turn with this number has begun and not ended: no request answers it any
        more."""
        if session.is_busy and session.turns == turn and self._open.get(session.id) is session:
            session.is_answered = False
            self.end(session.id)

    def _expire_later(self, session: Session) -> None:
        loop = asyncio.get_running_loop()
        session.idle_since = loop.time()
        session.expiry = loop.call_later(session.idle_s, self.end, session.id)

    def end(self, session_id: str) -> bool:
        """End a session, also one whose turn runs. Returns whether there was one."""
        session = self._open.pop(session_id, None)
        if session is None:
            return False
        if session.expiry is not None:
            session.expiry.cancel()
        # If a turn is running, the request that answers it closes the generator: Python does not allow
        # another task to close a generator that is running.
        if not session.is_answered:
            task = asyncio.ensure_future(session.outputs.aclose())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        return True


class EngineFacts(Struct, frozen=True):
    """What decides whether sessions are right, of an engine's ``VllmConfig``."""

    vllm: str
    """The version."""
    drafts: str
    """How it drafts tokens (speculative decoding); empty if it does not."""
    data_parallel_ranks: int
    api_processes: int
    transfers_kv: bool
    has_state: bool
    """Whether the model has state beside its KV cache, as those with Mamba layers have."""
    scheduler: str
    """A scheduler that is not vLLM's own; empty if it is."""
    kv_tokens: int
    """What the KV cache holds, as vLLM counts it: layers of different kinds, as those with a sliding window
    beside others, have blocks of their own."""
    most_requests: int
    """How many run at once, sessions that wait for their next turn included."""
    longest_request: int

    @classmethod
    def of(cls, config: Any, version: str) -> "EngineFacts":
        parallel, cache, model = config.parallel_config, config.cache_config, config.model_config
        drafting, scheduling = config.speculative_config, config.scheduler_config
        return cls(
            vllm=version,
            drafts="" if drafting is None else str(drafting.method),
            data_parallel_ranks=parallel.data_parallel_size,
            api_processes=getattr(parallel, "_api_process_count", 1),
            transfers_kv=config.kv_transfer_config is not None,
            has_state=bool(model.is_hybrid or model.has_inner_state),
            scheduler="" if scheduling.scheduler_cls is None else str(scheduling.scheduler_cls),
            kv_tokens=(cache.num_gpu_blocks or 0) // _kv_groups(config) * cache.block_size,
            most_requests=getattr(scheduling, "max_num_active_seqs", None) or scheduling.max_num_seqs,
            longest_request=model.max_model_len,
        )

    def faults(self) -> list[str]:
        """Why sessions are not known to be right, each in a few words."""
        reasons = {
            f"speculative decoding ({self.drafts})": bool(self.drafts),
            f"data parallelism ({self.data_parallel_ranks} ranks)": self.data_parallel_ranks > 1,
            f"several API processes ({self.api_processes})": self.api_processes > 1,
            "KV transfer": self.transfers_kv,
            "a model with state beside its KV cache": self.has_state,
            f"another scheduler ({self.scheduler})": bool(self.scheduler),
            "no more than one request at once": self.most_requests < 2,
        }
        found = [name for name, holds in reasons.items() if holds]
        if fault := fault_of(self.vllm):
            found.append(fault)
        if not self.spare_tokens:
            found.append("a KV cache that holds no more than one request of the greatest length")
        return found

    @property
    def spare_tokens(self) -> int:
        """At most half of the KV cache, and only what the longest request leaves."""
        return max(min(self.kv_tokens // 2, self.kv_tokens - self.longest_request), 0)


def _kv_groups(config: Any) -> int:
    """How many groups of layers have blocks of their own, of as many layers each as the rarest kind has."""
    kinds = getattr(config.model_config.hf_text_config, "layer_types", None)
    if not kinds or getattr(config.scheduler_config, "disable_hybrid_kv_cache_manager", False):
        return 1
    counts = Counter(kinds).values()
    return sum(math.ceil(count / min(counts)) for count in counts)


def limits_of(facts: EngineFacts) -> Limits:
    """What sessions may take of an engine: at most half of its requests and of its KV cache. Nothing where a
    session is not known to be right."""
    if faults := facts.faults():
        refused = f"no sessions are opened, because of {', '.join(faults)}"
        log.warning("%s", refused)
        return Limits(0, 0, refused)
    whole = missing_of(facts.vllm) or ""
    if whole:
        log.warning("turns with strict tools, formats, seeds or log probabilities have no session: %s", whole)
    return Limits(facts.most_requests // 2, facts.spare_tokens, whole=whole)


class SessionsPlugin:
    """What ``VLLM_PLUGINS=slipring_sessions`` loads."""

    name = PLUGIN
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._sessions: Sessions | None = None
        self._replica = Replica()
        self._make_input: Callable[[Turn], Any]
        self._facts: EngineFacts

    def attach_router(self, app: Any) -> None:
        app.add_middleware(ReplicaHeader, replica=self._replica)
        app.router.routes += [
            Route(PATH, self._status, methods=["GET"]),
            Route(PATH, self._run, methods=["POST"]),
            Route(PATH + "/{id}/end", self._end, methods=["POST"]),
        ]

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        import vllm
        from vllm.engine.protocol import StreamingInput
        from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

        recommended = engine_client.model_config.get_diff_sampling_param()

        def params(turn: Turn) -> Any:
            asked = msgspec.structs.asdict(turn.sampling)
            given = {name: value for name, value in asked.items() if value is not None}
            if constraint := given.get("structured_outputs"):
                given["structured_outputs"] = StructuredOutputsParams(**constraint)
            return SamplingParams(**{**recommended, **given}, output_kind=RequestOutputKind.DELTA)

        def make_input(turn: Turn) -> Any:
            prompt = {"prompt_token_ids": turn.prompt, "cache_salt": turn.cache_salt or None}
            try:
                return StreamingInput(prompt=prompt, sampling_params=params(turn))
            except (ValueError, TypeError) as error:
                raise TurnRefused(400, str(error)) from None

        def generate(turn: Turn, inputs: AsyncIterator[Any]) -> Any:
            return engine_client.generate(
                inputs,
                params(turn),
                f"slipring-{turn.session}",
                priority=turn.priority,
                lora_request=adapter(turn.model),
            )

        def adapter(name: str) -> Any:
            models = state.openai_serving_models
            found = models.lora_requests.get(name)
            if found is None and name and all(each.name != name for each in models.base_model_paths):
                raise TurnRefused(404, f"There is no model {name}.")
            return found

        self._replica.describe(engine_client.vllm_config)
        self._make_input = make_input
        self._facts = EngineFacts.of(engine_client.vllm_config, vllm.__version__)
        self._sessions = Sessions(limits_of(self._facts), generate)

    async def _status(self, request: Request) -> Response:
        sessions = self._ready()
        limits = sessions.limits
        return JSONResponse(
            {
                "most_sessions": limits.sessions,
                "most_tokens": limits.tokens,
                "sessions": len(sessions),
                "tokens": sessions.held_tokens,
                "opened": sessions.opened,
                "continued": sessions.continued,
                "refused": limits.refused,
                "whole": limits.whole,
                "engine": msgspec.structs.asdict(self._facts),
            }
        )

    async def _run(self, request: Request) -> Response:
        sessions = self._ready()
        try:
            turn = decode_turn(await request.body())
            session = sessions.begin(turn, self._make_input)
        except msgspec.DecodeError as error:
            return _refusal(400, str(error))
        except TurnRefused as error:
            return _refusal(error.status, str(error))
        return _Answer(sessions, session, turn)

    async def _end(self, request: Request) -> Response:
        return JSONResponse({"ended": self._ready().end(request.path_params["id"])})

    def _ready(self) -> Sessions:
        assert self._sessions is not None
        return self._sessions


decode_turn = msgspec.json.Decoder(Turn).decode


class _Answer(StreamingResponse):
    """The answer to a request for a turn. A client may leave before its first event, or while one is being
    sent; then nothing but garbage collection would close the generator of events, some time."""

    def __init__(self, sessions: Sessions, session: Session, turn: Turn) -> None:
        self._sessions, self._session, self._turn = sessions, session, session.turns
        self._events = answered(sessions, session, turn)
        super().__init__(self._events, media_type="text/event-stream")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()
            self._sessions.abandon(self._session, self._turn)


async def answered(sessions: Sessions, session: Session, turn: Turn) -> AsyncGenerator[bytes, None]:
    """The events of a turn, in the form of a streamed completion. A turn that does not end regularly, or
    whose client leaves, ends its session."""
    emitted, reason, number = 0, None, session.turns
    if not sessions.answer(session):
        yield _event(error={"message": "The session has ended.", "code": 404})
        return
    try:
        while reason is None:
            output = await anext(session.outputs)
            for each in output.outputs:
                emitted += len(each.token_ids)
                reason = each.finish_reason
                yield _event(
                    choices=[
                        {
                            "text": each.text,
                            "token_ids": list(each.token_ids),
                            "logprobs": _logprobs(each, as_text=turn.sampling.detokenize),
                            "finish_reason": reason,
                            "stop_reason": each.stop_reason,
                        }
                    ]
                )
            if reason is not None:
                if reason not in _ENDS:
                    raise RuntimeError(f"The engine has ended the turn: {reason}.")
                cached = turn.held or output.num_cached_tokens or 0
                sessions.complete(session, emitted)
                yield _event(
                    choices=[],
                    usage={
                        "prompt_tokens": turn.held + len(turn.prompt),
                        "completion_tokens": emitted,
                        "prompt_tokens_details": {"cached_tokens": cached},
                    },
                )
                yield b"data: [DONE]\n\n"
    except Exception as error:  # any failure of the engine becomes an error event for the client
        log.info("a turn of a session has failed: %s", error)
        code = 400 if isinstance(error, ValueError) else 500
        yield _event(error={"message": str(error) or type(error).__name__, "code": code})
    finally:
        if session.is_busy and session.turns == number:
            sessions.end(session.id)
            async with aclosing(session.outputs):
                pass


def _logprobs(completion: Any, *, as_text: bool) -> dict[str, Any] | None:
    """The log probabilities of new tokens, in the form of a completion."""
    if completion.logprobs is None:
        return None

    def name(id: int, found: Any) -> str:
        return found.decoded_token if as_text else f"token_id:{id}"

    steps = [
        {id: (name(id, found), max(found.logprob, _LEAST_LOGPROB)) for id, found in step.items()}
        for step in completion.logprobs
    ]
    chosen = [step[id] for id, step in zip(completion.token_ids, steps, strict=True)]
    return {
        "tokens": [token for token, _ in chosen],
        "token_logprobs": [logprob for _, logprob in chosen],
        "top_logprobs": [dict(step.values()) for step in steps],
    }


def _event(**fields: Any) -> bytes:
    return b"data: " + msgspec.json.encode(fields) + b"\n\n"


def _refusal(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "code": status}}, status)
