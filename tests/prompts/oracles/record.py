"""Records what independent implementations write and read. Runs in an environment that has them.

``python -m tests.prompts.oracles.record VOCABULARY OUTPUT FAMILY …`` reads a ``tokenizer.json`` and writes a
JSON file for each family.
"""

import gzip
import importlib.util
import json
import os
import re
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tests.prompts.oracles.conversations import CHAINS, OUTPUT, PROMPTS, THANKS, TOOLS, Message, Step
from tests.prompts.oracles.families import FAMILIES, Family

_TOOLS = [{"type": "function", "function": tool} for tool in TOOLS]


class FamilyTokenizer:
    """A tokenizer as ``renderers`` takes one: words of a vocabulary, and the control tokens of a family."""

    unk_token_id = None

    def __init__(self, backend: Any, family: Family) -> None:
        self._backend = backend
        first = backend.get_vocab_size()
        self._controls = {token: first + number for number, token in enumerate(family.controls)}
        self._names = {id: token for token, id in self._controls.items()}
        longest_first = sorted(self._controls, key=len, reverse=True)
        self._split = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self.name_or_path = family.model
        self.eos_token_id = self._controls[family.eos]
        self.eos_token = family.eos
        self.bos_token = family.bos
        self.chat_template = ""

    def encode(self, text: str, **options: Any) -> list[int]:
        ids: list[int] = []
        for part in self._split.split(text):
            if part in self._controls:
                ids.append(self._controls[part])
            elif part:
                ids += self._backend.encode(part, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Any, skip_special_tokens: bool = False, **options: Any) -> str:
        text, words = "", list[int]()
        for id in [ids] if isinstance(ids, int) else ids:
            if id in self._names:
                text += self._backend.decode(words) + ("" if skip_special_tokens else self._names[id])
                words = []
            else:
                words.append(id)
        return text + self._backend.decode(words)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            return self._controls.get(tokens)
        return [self._controls.get(token) for token in tokens]

    def get_vocab(self) -> dict[str, int]:
        return self._controls


class HarmonyTokenizer:
    """The vocabulary of ``openai-harmony`` as ``renderers`` takes one."""

    name_or_path = ""
    unk_token_id = None

    def __init__(self) -> None:
        self._encoding = _harmony()
        self.eos_token_id = self.convert_tokens_to_ids("<|return|>")

    def encode(self, text: str, **options: Any) -> list[int]:
        return list(self._encoding.encode(text, allowed_special="all"))

    def decode(self, ids: Any, **options: Any) -> str:
        return str(self._encoding.decode([ids] if isinstance(ids, int) else ids))

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        return self.encode(tokens)[0] if self._encoding.is_special_token(self.encode(tokens)[0]) else None


@cache
def _harmony() -> Any:
    from openai_harmony import HarmonyEncodingName, load_harmony_encoding

    return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


def provide_harmony_words(folder: str) -> None:
    """Unpack the words of Harmony, a file of another package, where ``openai-harmony`` looks for them: it
    would download them."""
    if "TIKTOKEN_ENCODINGS_BASE" in os.environ:
        return
    spec = importlib.util.find_spec("bpe_openai")
    assert spec is not None, "the package bpe-openai, which has the words of gpt-oss, is not installed"
    assert spec.origin is not None
    packed = Path(spec.origin).parent / "data" / "o200k_base.tiktoken.gz"
    Path(folder, "o200k_base.tiktoken").write_bytes(gzip.decompress(packed.read_bytes()))
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = folder


def chat_messages(family: Family, messages: list[Message]) -> list[dict[str, Any]]:
    """Messages in the form of chat completions. Outputs get the ids of the calls that precede them."""
    chat: list[dict[str, Any]] = []
    pending: list[tuple[str, str]] = []
    count = 0
    for message in messages:
        written: dict[str, Any] = {"role": message["role"], "content": message["content"]}
        if message["role"] == "assistant":
            if message["thoughts"]:
                written["reasoning_content"] = message["thoughts"]
            if message["calls"]:
                written["tool_calls"] = []
            for name, arguments in message["calls"]:
                id = f"functions.{name}:{count}" if family.indexed_ids else f"call{count:05}"
                count += 1
                pending.append((id, name))
                function = {"name": name, "arguments": arguments}
                written["tool_calls"].append({"id": id, "type": "function", "function": function})
        if message["role"] == "tool":
            written["tool_call_id"], written["name"] = pending.pop(0)
        chat.append(written)
    return chat


_ANALYSIS = "<|channel|>analysis<|message|>"
"""``renderers`` opens this channel for gpt-oss; by ``openai-harmony`` the model chooses its channel."""


class RenderersOracle:
    """The package ``renderers``."""

    refusals = (ValueError,)
    """What it raises for conversations that the family's template does not take."""

    def __init__(self, family: Family, vocabulary: str) -> None:
        import renderers

        if family.variant == "gpt-oss":
            self._tokenizer: Any = HarmonyTokenizer()
        else:
            import tokenizers

            self._tokenizer = FamilyTokenizer(tokenizers.Tokenizer.from_file(vocabulary), family)
        self._family = family
        self._make = lambda **options: renderers.create_renderer(
            self._tokenizer, type(renderers.config_from_name(family.variant))(**{**family.options, **options})
        )
        self.version = f"renderers {renderers.__version__}"

    @cache  # noqa: B019  (oracles live as long as the process)
    def _renderer(self, effort: str | None, *, keep: bool = False) -> Any:
        """``keep``: thoughts are kept where the template would drop them."""
        options = {} if effort in (None, self._family.effort) else self._family.efforts[effort]
        return self._make(**options, **({"thinking_retention": "all"} if keep else {}))

    def stops(self) -> list[str]:
        return sorted(map(self.text, self._renderer(None).get_stop_token_ids()))

    def text(self, ids: Any) -> str:
        return str(self._tokenizer.decode(ids))

    def prompt(
        self, messages: list[Message], tools: bool, effort: str | None, *, keep: bool = False
    ) -> list[int]:
        renderer = self._renderer(effort, keep=keep)
        chat = chat_messages(self._family, messages)
        ids = renderer.render_ids(chat, tools=_TOOLS if tools else None, add_generation_prompt=True)
        return self._without_channel(list(ids))

    def _without_channel(self, ids: list[int]) -> list[int]:
        channel = self._tokenizer.encode(_ANALYSIS) if self._family.variant == "gpt-oss" else []
        return ids[: -len(channel)] if channel and ids[-len(channel) :] == channel else ids

    def emitted(self, messages: list[Message], effort: str | None) -> list[int]:
        """The ids that the model emits for the last message, after the prompt for it."""
        last = messages[-1]
        if self._family.variant == "gpt-oss" and not last["calls"]:
            # As an earlier message it would be written without its thoughts.
            thoughts = f"{_ANALYSIS}{last['thoughts']}<|end|><|start|>assistant" if last["thoughts"] else ""
            text = f"{thoughts}<|channel|>final<|message|>{last['content']}<|return|>"
            return list(self._tokenizer.encode(text))
        renderer = self._renderer(effort, keep=True)
        rendered = renderer.render(chat_messages(self._family, messages), tools=_TOOLS)
        sampled = [
            number
            for number, (index, is_sampled) in enumerate(
                zip(rendered.message_indices, rendered.sampled_mask, strict=True)
            )
            if index == len(messages) - 1 and is_sampled
        ]
        written = self.text(rendered.token_ids[: sampled[-1] + 1])
        prompt = self.text(self.prompt(messages[:-1], True, effort, keep=True))
        if written.startswith(prompt):
            ids = list(self._tokenizer.encode(written[len(prompt) :]))
        else:
            ids = [rendered.token_ids[number] for number in sampled]
        if self._family.closing:
            ids = [*self._tokenizer.encode(last["thoughts"] + self._family.closing), *ids]
        if ends := self._family.ends:
            return [*ids, *self._tokenizer.encode(ends[bool(last["calls"])])]
        # A template may leave the last message open.
        stops = renderer.get_stop_token_ids()
        return ids if ids[-1] in stops else [*ids, stops[0]]

    def bridge(
        self,
        before: tuple[list[int], list[int]],
        messages: list[Message],
        new: int,
        effort: str | None,
        *,
        keep: bool,
    ) -> list[int] | None:
        """The prompt that the last ``new`` messages extend; None if the oracle renders all again."""
        chat = chat_messages(self._family, messages)[-new:]
        renderer = self._renderer(effort, keep=keep)
        extended = renderer.bridge_to_next_turn(*before, chat, tools=_TOOLS)
        return None if extended is None else self._without_channel(list(extended.token_ids))

    def parse(self, prompt: list[int], emitted: list[int], effort: str | None) -> dict[str, Any]:
        if self._family.variant == "gpt-oss":
            return _parse_harmony(emitted)
        parsed = self._renderer(effort).parse_response(emitted, tools=_TOOLS, prompt_ids=prompt)
        return {
            "thoughts": parsed.reasoning_content or "",
            "text": parsed.content or "",
            "calls": [[call.name, call.arguments] for call in parsed.tool_calls],
        }


def _parse_harmony(emitted: list[int]) -> dict[str, Any]:
    """What ``openai-harmony`` reads."""
    from openai_harmony import Role

    read: dict[str, Any] = {"thoughts": "", "text": "", "calls": []}
    for message in _harmony().parse_messages_from_completion_tokens(emitted, Role.ASSISTANT):
        text = "".join(content.text for content in message.content)
        if message.recipient:
            read["calls"].append([message.recipient.removeprefix("functions."), json.loads(text)])
        else:
            read["thoughts" if message.channel == "analysis" else "text"] += text
    return read


class MistralOracle:
    """The package ``mistral-common``, with words that it brings. It does not read answers."""

    def __init__(self, family: Family, folder: str) -> None:
        import mistral_common
        from mistral_common.exceptions import MistralCommonException
        from mistral_common.tokens.tokenizers.base import SpecialTokens
        from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer

        self.refusals = (MistralCommonException,)
        self.version = f"mistral-common {mistral_common.__version__}"
        data = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
        described = json.loads(data.read_text())
        described.pop("image")
        names = [token["token_str"] for token in Tekkenizer.DEPRECATED_SPECIAL_TOKENS]
        names += [token.value for token in SpecialTokens if token.value not in names]
        described["config"]["version"] = family.variant
        described["special_tokens"] = [
            {"rank": rank, "token_str": name, "is_control": True} for rank, name in enumerate(names)
        ]
        path = Path(folder, f"tekken_{family.variant}.json")
        path.write_text(json.dumps(described))
        self._family = family
        self._tokenizer = MistralTokenizer.from_file(path)

    def stops(self) -> list[str]:
        return ["</s>"]

    def text(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, special_token_policy="keep"))

    def prompt(self, messages: list[Message], tools: bool, effort: str | None) -> list[int]:
        from mistral_common.protocol.instruct.request import ChatCompletionRequest

        chat = chat_messages(self._family, messages)
        for message in chat:
            for call in message.get("tool_calls", ()):
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
            if thoughts := message.pop("reasoning_content", None):
                chunks = [{"type": "thinking", "thinking": thoughts, "closed": True}]
                chunks += [{"type": "text", "text": message["content"]}] if message["content"] else []
                message["content"] = chunks
        request = ChatCompletionRequest.from_openai(chat, _TOOLS if tools else None)
        return list(self._tokenizer.encode_chat_completion(request).tokens)

    def emitted(self, messages: list[Message], effort: str | None) -> list[int]:
        """The ids of the last message: it can be written only if another one follows."""
        calls = messages[-1]["calls"]
        following = [OUTPUT] * len(calls) if calls else [THANKS]
        tools = bool(calls)  # if the user speaks again, they move in some versions
        begun = len(self.prompt(messages[:-1], tools, effort))
        rest = self.prompt([*messages, *following], tools, effort)[begun:]
        end = self._tokenizer.instruct_tokenizer.tokenizer.eos_id
        return rest[: rest.index(end) + 1]

    def bridge(self, *arguments: Any, **options: Any) -> None:
        """There is no other way than to write all messages."""

    def parse(self, prompt: list[int], emitted: list[int], effort: str | None) -> None:
        """It has no parser."""


def record(oracle: Any, family: Family) -> dict[str, Any]:
    """All that an oracle writes and reads for a family."""
    recording: dict[str, Any] = {
        "oracle": oracle.version,
        "stops": oracle.stops(),
        "prompts": {},
        "chains": {},
    }
    for name, case in PROMPTS.items():
        effort = case.get("effort")
        if effort is not None and effort not in family.efforts:
            continue
        with suppress(*oracle.refusals):
            ids = oracle.prompt(case["messages"], bool(case.get("tools")), effort)
            recording["prompts"][name] = {"text": oracle.text(ids), "ids": ids}
    for name, steps in CHAINS.items():
        with suppress(*oracle.refusals):
            recording["chains"][name] = _record_chain(oracle, steps, family.effort_of(steps))
    return recording


def _record_chain(oracle: Any, steps: list[Step], effort: str | None) -> list[dict[str, Any]]:
    messages: list[Message] = []
    prompt: list[int] = []
    emitted: list[int] = []
    recorded: list[dict[str, Any]] = []
    for step in steps:
        messages = [*messages, *step["new"]]
        entry: dict[str, Any] = {}
        before = [*prompt, *emitted]
        whole = oracle.prompt(messages, True, effort)
        extended: dict[str, list[int]] = {}
        for keep in (False, True) if before else ():
            ids = oracle.bridge((prompt, emitted), messages, len(step["new"]), effort, keep=keep)
            if ids is not None and ids[: len(before)] == before:
                extended["kept" if keep else "added"] = ids
        if before and whole[: len(before)] == before:
            extended.setdefault("kept", whole)
        if "added" in extended:
            extended.pop("kept", None)
        else:
            entry["whole"] = {"text": oracle.text(whole), "ids": whole}
        for key, ids in extended.items():
            entry[key] = {"text": oracle.text(ids[len(before) :]), "ids": ids[len(before) :]}
        prompt = extended.get("added", whole)
        if "answer" in step:
            messages = [*messages, step["answer"]]
            emitted = oracle.emitted(messages, effort)
            entry["emitted"] = {"text": oracle.text(emitted), "ids": emitted}
            # An oracle that does not read answers has written this one.
            entry["parsed"] = oracle.parse(prompt, emitted, effort) or _meant(step["answer"])
        recorded.append(entry)
    return recorded


def _meant(answer: Message) -> dict[str, Any]:
    calls = [list(call) for call in answer["calls"]]
    return {"thoughts": answer["thoughts"], "text": answer["content"], "calls": calls}


def main() -> None:
    vocabulary, folder, *names = sys.argv[1:]
    provide_harmony_words(folder)
    for name in names:
        family = FAMILIES[name]
        oracle: Any = (
            MistralOracle(family, folder)
            if family.oracle == "mistral-common"
            else RenderersOracle(family, vocabulary)
        )
        recording = record(oracle, family)
        Path(folder, f"{name}.json").write_text(json.dumps(recording, ensure_ascii=False))


if __name__ == "__main__":
    main()
