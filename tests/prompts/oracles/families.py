"""The families that are compared with an independent implementation, and the control tokens of each.

Plain data, as ``conversations``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DAY = "2026-01-02"
"""The date that prompts name."""
_CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_HERMES = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_GLM = (
    *("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "/nothink"),
)
_KIMI = (
    *("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>", "[BOS]", "[EOS]"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<think>", "</think>"),
    *("<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>"),
)
_DEEPSEEK = (
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
    *("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    *("<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>"),
    *("<｜tool▁output▁end｜>", "<think>", "</think>"),
)
_MISTRAL = (
    *("<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    *("[THINK]", "[/THINK]", "[TOOL_CONTENT]"),
)
_HARMONY = (
    *("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"),
    "<|endoftext|>",
)
_LAGUNA = (
    *("〈|EOS|〉", "<think>", "</think>", "<assistant>", "</assistant>", "<tool_call>", "</tool_call>"),
    *("<user>", "</user>", "<system>", "</system>", "<tool_response>", "</tool_response>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)
_HUNYUAN = (
    *(f"<｜{name}:opensource｜>" for name in ("hy_begin_of_sentence", "hy_eos", "hy_User", "hy_Assistant")),
    "<｜reasoning_mode:opensource｜>",
    *(
        f"<{mark}{name}:opensource>"
        for name in (
            *("think", "tool_calls", "tool_call", "tool_sep", "arg_key", "arg_value"),
            *("tool_responses", "tool_response"),
        )
        for mark in ("", "/")
    ),
)
_QWEN_VISION = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
_SWITCH: dict[str, dict[str, Any]] = {"none": {"enable_thinking": False}, "high": {"enable_thinking": True}}


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family, and who else implements its format."""

    oracle: str
    """``renderers``, ``mistral-common`` or ``openai-harmony``."""
    variant: str
    """What the oracle calls the family."""
    model: str = ""
    """A model of the family, where the oracle distinguishes models."""
    own: str = ""
    """The template of ours that is to write the same: one of ``templates/``, else of the families'."""
    own_tools: bool = False
    """Whether this template also writes tools as the family does."""
    builtin: str = ""
    """The template that slipring brings."""
    official: str = ""
    """The name of the official template in a directory of them."""
    controls: tuple[str, ...]
    bos: str = ""
    eos: str
    efforts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The oracle's options for efforts."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the oracle's."""
    effort: str | None = None
    """The effort that stands for these options, in all cases that name none."""
    ends: tuple[str, str] | None = None
    """The tokens that end an answer of text and one of calls, where they begin the next message."""
    closing: str = ""
    """What the model writes after its thoughts, where the oracle writes messages without thoughts."""
    indexed_ids: bool = False
    """Whether ids of calls are made of names and numbers."""

    def has_tools(self, source: str) -> bool:
        """Whether a template, ``own``, ``builtin`` or ``official``, writes the family's words about tools."""
        return source != "own" or self.own_tools

    def effort_of(self, steps: Sequence[Mapping[str, Any]]) -> str | None:
        """The effort of a chain: a model that is to think would not answer without thoughts."""
        thinks = any("answer" in step and step["answer"]["thoughts"] for step in steps)
        return self.effort if thinks or "none" not in self.efforts else "none"


FAMILIES: dict[str, Family] = {
    "qwen3": Family(
        oracle="renderers",
        variant="qwen3",
        own="qwen3",
        official="Qwen-Qwen3-0.6B",
        controls=(*_CHATML, *_HERMES),
        eos="<|im_end|>",
        efforts=_SWITCH,
    ),
    "qwen3_5": Family(
        oracle="renderers",
        variant="qwen3.5",
        model="Qwen/Qwen3.5-4B",
        own="qwen3_5",
        official="Qwen3.5-4B",
        controls=(*_CHATML, *_HERMES, *_QWEN_VISION),
        eos="<|im_end|>",
        efforts=_SWITCH,
    ),
    "qwen3_6": Family(
        oracle="renderers",
        variant="qwen3.6",
        model="Qwen/Qwen3.6-35B-A3B",
        own="qwen3_5",
        official="Qwen3.6-35B-A3B",
        controls=(*_CHATML, *_HERMES, *_QWEN_VISION),
        eos="<|im_end|>",
        efforts=_SWITCH,
    ),
    "qwen3_8": Family(
        oracle="renderers",
        variant="qwen3.8",
        model="Qwen/Qwen3.8-27B",
        own="qwen3_8",
        official="Qwen3.8-27B",
        controls=(*_CHATML, *_HERMES, *_QWEN_VISION),
        eos="<|im_end|>",
        options={"reasoning_effort": "medium"},
        effort="medium",
        efforts={
            "none": {"enable_thinking": False},
            "low": {"reasoning_effort": "low"},
            "high": {"reasoning_effort": "xhigh"},
        },
    ),
    "nemotron_3": Family(
        oracle="renderers",
        variant="nemotron-3",
        own="nemotron_3",
        official="NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        controls=(*_CHATML, "<s>", "</s>", *_HERMES),
        eos="<|im_end|>",
        efforts=_SWITCH,
    ),
    "glm_4_5": Family(
        oracle="renderers",
        variant="glm-4.5",
        own="glm_4_5",
        official="GLM-4.6",
        controls=_GLM,
        eos="<|endoftext|>",
        ends=("<|user|>", "<|observation|>"),
        efforts=_SWITCH,
    ),
    "glm_4_7": Family(
        oracle="renderers",
        variant="glm-5",
        own="glm_4_7",
        official="GLM-4.7-Flash",
        controls=_GLM,
        eos="<|endoftext|>",
        ends=("<|user|>", "<|observation|>"),
        efforts=_SWITCH,
    ),
    "glm_5_1": Family(
        oracle="renderers",
        variant="glm-5.1",
        own="glm_4_7",
        official="GLM-5.1",
        controls=_GLM,
        eos="<|endoftext|>",
        ends=("<|user|>", "<|observation|>"),
        efforts=_SWITCH,
    ),
    "glm_5_3": Family(
        oracle="renderers",
        variant="glm-5.3",
        own="glm_5_3",
        official="GLM-5.3",
        controls=_GLM,
        eos="<|endoftext|>",
        ends=("<|user|>", "<|observation|>"),
        efforts={"low": {"reasoning_effort": "low"}, "high": {"reasoning_effort": "high"}},
    ),
    "laguna_xs_2": Family(
        oracle="renderers",
        variant="laguna-xs.2",
        own="laguna_xs_2",
        official="poolside-Laguna-XS.2",
        controls=_LAGUNA,
        eos="〈|EOS|〉",
        options={"enable_thinking": True},
        effort="high",
        efforts={"none": {"enable_thinking": False}},
    ),
    "laguna_s_2_1": Family(
        oracle="renderers",
        variant="laguna-s-2.1",
        own="laguna_s_2_1",
        official="poolside-Laguna-S-2.1",
        controls=_LAGUNA,
        eos="〈|EOS|〉",
        efforts=_SWITCH,
    ),
    "hunyuan_3": Family(
        oracle="renderers",
        variant="hy3",
        own="hunyuan_3",
        official="tencent-Hy3",
        controls=_HUNYUAN,
        bos="<｜hy_begin_of_sentence:opensource｜>",
        eos="<｜hy_eos:opensource｜>",
        options={"reasoning_effort": "high"},
        effort="high",
        efforts={"none": {"reasoning_effort": "no_think"}, "low": {"reasoning_effort": "low"}},
    ),
    "kimi_k2": Family(
        oracle="renderers",
        variant="kimi-k2",
        own="kimi_k2",
        official="Kimi-K2-Instruct",
        controls=_KIMI,
        eos="<|im_end|>",
        indexed_ids=True,
    ),
    "kimi_k2_5": Family(
        oracle="renderers",
        variant="kimi-k2.5",
        own="kimi_k2_5",
        own_tools=True,
        official="Kimi-K2.5",
        controls=_KIMI,
        eos="<|im_end|>",
        efforts={"none": {"thinking": False}, "high": {"thinking": True}},
        indexed_ids=True,
    ),
    "minimax_m2": Family(
        oracle="renderers",
        variant="minimax-m2",
        model="MiniMaxAI/MiniMax-M2",
        own="minimax_m2",
        official="MiniMax-M2",
        controls=(
            *("]~!b[", "]~b]", "[e~[", "<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>"),
        ),
        bos="]~!b[",
        eos="[e~[",
    ),
    "deepseek_v3": Family(
        oracle="renderers",
        variant="deepseek-v3",
        own="deepseek_v3",
        official="deepseek-ai-DeepSeek-V3",
        controls=_DEEPSEEK,
        bos="<｜begin▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
    ),
    "deepseek_r1": Family(
        oracle="renderers",
        variant="deepseek-r1",
        own="deepseek_r1",
        official="deepseek-ai-DeepSeek-R1",
        controls=_DEEPSEEK,
        bos="<｜begin▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
        closing="\n</think>\n\n",
    ),
    "deepseek_v4": Family(
        oracle="renderers",
        variant="deepseek-v4",
        builtin="deepseek-v4",
        own="deepseek_v4",
        official="deepseek-ai-DeepSeek-V4-Flash-0731",
        controls=(
            *(*_DEEPSEEK[:4], "｜DSML｜", "<think>", "</think>", "<｜latest_reminder｜>", "<｜action｜>"),
            *("<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜title｜>", "<｜read_url｜>"),
        ),
        bos="<｜begin▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
        options={"enable_thinking": True},
        effort="low",
        efforts={"none": {"enable_thinking": False}, "high": {"reasoning_effort": "high"}},
    ),
    "gemma_4": Family(
        oracle="renderers",
        variant="gemma4",
        model="google/gemma-4-31B-it",
        own="gemma_4",
        official="google-gemma-4-31B-it",
        controls=(
            *("<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>", "<|tool>"),
            *("<tool|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>'),
            *("<|image>", "<image|>", "<|image|>"),
        ),
        bos="<bos>",
        eos="<turn|>",
        options={"enable_thinking": True},
        effort="high",
        efforts={"none": {"enable_thinking": False}},
    ),
    "llama_3_1": Family(
        oracle="renderers",
        variant="llama-3",
        own="llama_3_1",
        official="meta-llama-Llama-3.2-3B-Instruct",
        controls=(
            *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
            *("<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
        ),
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        options={"date_string": "02 Jan 2026"},
    ),
    "mistral_nemo": Family(
        oracle="mistral-common",
        variant="v3",
        own="mistral_nemo",
        official="mistralai-Mistral-Nemo-Instruct-2407",
        controls=_MISTRAL,
        bos="<s>",
        eos="</s>",
    ),
    "mistral_small": Family(
        oracle="mistral-common",
        variant="v11",
        own="mistral_small",
        official="Mistral-Small-3.2-24B-Instruct-2506",
        controls=_MISTRAL,
        bos="<s>",
        eos="</s>",
    ),
    "ministral_3": Family(
        oracle="mistral-common",
        variant="v13",
        own="ministral_3",
        official="mistralai-Ministral-3-14B-Reasoning-2512",
        controls=_MISTRAL,
        bos="<s>",
        eos="</s>",
    ),
    "gpt_oss": Family(
        oracle="renderers",
        variant="gpt-oss",
        builtin="harmony",
        official="openai-gpt-oss-120b",
        controls=_HARMONY,
        eos="<|return|>",
        options={"conversation_start_date": DAY},
        efforts={"low": {"reasoning_effort": "low"}, "high": {"reasoning_effort": "high"}},
    ),
}
