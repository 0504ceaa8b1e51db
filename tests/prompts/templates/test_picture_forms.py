"""Pictures in the templates of the families that see, compared with what Jinja2 writes for whole
conversations."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from slipring.base.errors import InvalidRequest
from slipring.core.chain.instructions_and_tools import Head
from slipring.core.chain.state import ResponseState
from slipring.core.generation import Job, Prefill
from slipring.core.token_estimates import estimated_picture_tokens
from slipring.prompts.fallback_reasons import REWRITES_EARLIER
from slipring.prompts.foreseen_context import foresee
from slipring.prompts.rendering import Rendered, picture_id
from slipring.prompts.rendering_codec import RenderingCodec
from slipring.prompts.templates.chat_messages import (
    INLINE_PICTURES,
    PICTURE_PARTS,
    ChatMessage,
    PictureForm,
    picture_mark,
)
from slipring.prompts.templates.message_forms import MOVED_PICTURES, MessageForms
from slipring.prompts.templates.probed_template import ModelTemplate
from slipring.prompts.templates.template_renderer import TemplateRenderer
from slipring.prompts.tokenization.token_budget import UNLIMITED, TokenBudget
from slipring.prompts.tokenization.tokenizer import Tokenizer
from slipring.prompts.truncation import shorten
from slipring.protocol import wire
from slipring.protocol.items.item_pictures import Picture, pictures
from slipring.protocol.items.items import Item
from tests.pictures import data_url, png
from tests.prompts.templates.family_templates import render_with_jinja2
from tests.prompts.templates.test_family_renderers import call, spelled
from tests.prompts.test_rendering import after
from tests.prompts.test_rendering import job as any_job
from tests.prompts.vocabulary import item, small_metadata

FOLDER = Path(__file__).parent / "seeing"
FAMILIES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)
TOKENS = {
    "gemma_3": ("<start_of_image>", "<start_of_turn>", "<end_of_turn>"),
    "gemma_4": ("<|image|>", "<|turn>", "<turn|>"),
    "glm_4v": (
        *("<|begin_of_image|>", "<|image|>", "<|end_of_image|>", "<|user|>", "<|assistant|>", "<|system|>"),
        *("<|observation|>", "[gMASK]", "<sop>", "<tool_call>", "</tool_call>"),
    ),
    "internvl": ("<IMG_CONTEXT>", "<|im_start|>", "<|im_end|>"),
    "kimi_k2_5": (
        *("<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>", "<|im_user|>"),
        *("<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>", "<|tool_call_begin|>"),
        *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_begin|>"),
        "<|tool_calls_section_end|>",
    ),
    "llama_4": ("<|image|>", "<|header_start|>", "<|header_end|>", "<|eot|>"),
    "minicpm_v": ("<image>", "</image>", "<|im_start|>", "<|im_end|>"),
    "mistral_small": (
        *("[IMG]", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_RESULTS]"),
        *("[TOOL_CONTENT]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[ARGS]"),
    ),
    "pixtral": ("[IMG]", "[INST]", "[/INST]"),
    "qwen_vl": ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|im_start|>", "<|im_end|>"),
    "smolvlm": ("<image>", "<|im_start|>", "<end_of_utterance>"),
}
"""The control tokens of each family. The first is the first that is written for a picture."""
EOS = {
    "gemma_3": "<end_of_turn>",
    "gemma_4": "<turn|>",
    "glm_4v": "<|user|>",
    "llama_4": "<|eot|>",
    "mistral_small": "</s>",
    "pixtral": "</s>",
    "smolvlm": "<end_of_utterance>",
}
TEXTS = {"minicpm_v": PictureForm(text="(<image>./</image>)")}
MOVING = {"llama_4", "mistral_small"}
"""Families that write outputs of calls, and no pictures in them."""
ANSWER = "Two cats."


@cache
def vocabulary() -> Tokenizer:
    metadata = small_metadata()
    known = metadata["tokenizer.ggml.tokens"]
    names = sorted({name for tokens in TOKENS.values() for name in tokens} | {"<s>", "</s>"})
    new = [name for name in names if name not in known]
    metadata["tokenizer.ggml.tokens"] = [*known, *new]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], *(3 for _ in new)]
    return Tokenizer.from_gguf(metadata)


def job(items: tuple[Item, ...], parent: ResponseState | None = None) -> Job:
    return any_job(items, parent, Head())


def source_of(family: str) -> str:
    return (FOLDER / f"{family}.jinja").read_text()


@cache
def renderer(family: str, *, inline: bool = False, **variables: Any) -> TemplateRenderer:
    model = ModelTemplate(source=source_of(family), bos_token="<s>", eos_token=EOS.get(family, "<|im_end|>"))
    parts = (*PICTURE_PARTS, TEXTS[family]) if family in TEXTS else PICTURE_PARTS
    forms = (INLINE_PICTURES,) if inline else parts
    return TemplateRenderer(model, vocabulary(), pictures=forms, variables=variables)


@cache
def image(seed: int) -> dict[str, str]:
    return {"type": "input_image", "image_url": data_url(png(30 + seed, 40, seed))}


def parts(*content: str | int) -> list[dict[str, str]]:
    return [
        {"type": "input_text", "text": part} if isinstance(part, str) else image(part) for part in content
    ]


def said(*content: str | int) -> Item:
    return item("message", role="user", content=parts(*content))


def output(number: int, *content: str | int) -> Item:
    return item("function_call_output", call_id=f"c{number}", output=parts(*content))


def picture(seed: int) -> Picture:
    return pictures(said(seed))[0]


def written(family: str, *messages: tuple[str, list[str | int]], **variables: Any) -> str:
    """What Jinja2 writes for a whole conversation, with the prompt for an answer."""
    form = renderer(family).probed.picture
    assert form is not None

    def content(texts: list[str | int]) -> Any:
        if form.part is None:
            return "".join(text if isinstance(text, str) else form.text for text in texts)
        if family != "smolvlm" and all(isinstance(text, str) for text in texts):
            return "".join(map(str, texts))
        return [{"type": "text", "text": text} if isinstance(text, str) else form.part for text in texts]

    dicts = [{"role": role, "content": content(texts)} for role, texts in messages]
    render = render_with_jinja2(source_of(family), eos_token=EOS.get(family, "<|im_end|>"))
    return render(dicts, None, add_generation_prompt=True, variables=variables)


def placed(context: Rendered) -> list[tuple[int, str]]:
    """Each picture, with the id that stands for it."""
    return [(step.ids[each.at], each.digest) for step in context.body.steps() for each in step.pictures]


@EVERY_FAMILY
def test_a_conversation_is_written_as_by_jinja2(family: str) -> None:
    texts: list[str | int] = ["Look: ", 1, " and ", 2, "which?"]
    rendering = renderer(family).render(job((said(*texts),)))
    assert spelled(renderer(family), rendering.prompt) == written(family, ("user", texts))
    stands = vocabulary().control(TOKENS[family][0])
    assert placed(rendering.prompt) == [(stands, picture(1).digest), (stands, picture(2).digest)]
    beside = estimated_picture_tokens(picture(1)) + estimated_picture_tokens(picture(2))
    assert rendering.prompt.total == len(rendering.prompt.ids()) + beside
    assert rendering.prompt.id_count == len(rendering.prompt.ids())


@EVERY_FAMILY
def test_a_picture_is_appended_as_jinja2_writes_the_whole(family: str) -> None:
    first: list[str | int] = ["Look: ", 1]
    second: list[str | int] = [2, "Now?"]
    asked = job((said(*first),))
    rendering = renderer(family).render(asked)
    answer = item("message", role="assistant", content=ANSWER)
    emitted = vocabulary().encode(" " + ANSWER if family == "smolvlm" else ANSWER)
    position = rendering.with_answer(emitted, counted=100)
    assert position.total == 100 + len(emitted)
    turn = job((said(*second),), after(asked, position, output=(answer,)))
    appended = renderer(family).render(turn)
    assert appended.fallback is None
    whole = written(family, ("user", first), ("assistant", [ANSWER]), ("user", second))
    assert spelled(renderer(family), appended.prompt) == whole
    assert [digest for _, digest in placed(appended.prompt)] == [picture(1).digest, picture(2).digest]
    assert appended.prompt.digests() == [picture(1).digest, picture(2).digest]


@EVERY_FAMILY
def test_a_picture_of_an_output_stays_there_or_follows_it(family: str) -> None:
    items = (said("Weather?"), call(1), output(1, "A map: ", 1))
    rendering = renderer(family).render(job(items))
    text = spelled(renderer(family), rendering.prompt)
    assert rendering.prompt.digests() == [picture(1).digest]
    assert (MOVED_PICTURES.strip() in text) is (family in MOVING)


@EVERY_FAMILY
def test_marks_stay_in_the_text_for_an_engine_with_marks_of_its_own(family: str) -> None:
    rendering = renderer(family, inline=True).render(job((said("Look: ", 1, " and ", 2),)))
    ids = [id for id in rendering.prompt.ids() if id >= 2**31]
    assert ids == [picture_id(picture(number).digest) for number in (1, 2)]
    assert [digest for _, digest in placed(rendering.prompt)] == [picture(1).digest, picture(2).digest]


def test_pictures_that_the_template_numbers_are_numbered_through_the_chain() -> None:
    numbered = renderer("qwen_vl", add_vision_id=True)
    asked = job((said("Look: ", 1),))
    position = numbered.render(asked).with_answer(vocabulary().encode(ANSWER))
    answer = item("message", role="assistant", content=ANSWER)
    parent = after(asked, position, output=(answer,))
    plain = numbered.render(job((said("And?"),), parent))
    assert plain.fallback is None
    rendering = numbered.render(job((said(2),), parent))
    assert rendering.fallback == REWRITES_EARLIER
    whole = written(
        "qwen_vl", ("user", ["Look: ", 1]), ("assistant", [ANSWER]), ("user", [2]), add_vision_id=True
    )
    assert spelled(numbered, rendering.prompt) == whole
    assert "Picture 2: " in whole


@pytest.mark.parametrize("inline", [False, True])
def test_a_text_cannot_place_a_picture(inline: bool) -> None:
    seeing = renderer("qwen_vl", inline=inline)
    spelled_mark = picture_mark(0) + "<|image_pad|>"
    head = Head(instructions_json=Raw(wire.encode(spelled_mark)))
    plain = seeing.render(any_job((said(spelled_mark),), None, head)).prompt
    assert not plain.body.pictures
    assert vocabulary().control("<|image_pad|>") not in plain.ids()
    beside = seeing.render(any_job((said(spelled_mark, 1),), None, head)).prompt
    assert beside.digests() == [picture(1).digest]


def test_arguments_that_spell_a_mark_are_refused_beside_a_picture() -> None:
    """They stay in the text of an engine that finds pictures by their marks."""
    seeing = renderer("qwen_vl", inline=True)
    spelled_mark = item(
        "function_call", call_id="c1", name="weather", arguments=f'{{"city": "{picture_mark(0)}"}}'
    )
    items = (said("Look"), spelled_mark, output(1, 1))
    with pytest.raises(InvalidRequest, match="does not write the pictures"):
        seeing.render(job(items))
    asked = job((said("Look"),))
    parent = after(asked, seeing.render(asked).with_answer([7]))
    with pytest.raises(InvalidRequest, match="does not write the pictures"):
        seeing.render(job(items, parent))


def test_a_model_that_does_not_see_renders_a_chain_with_pictures_anew() -> None:
    seeing = renderer("qwen_vl")
    blind = TemplateRenderer(seeing.model, vocabulary())
    assert seeing.takes_pictures
    assert not blind.takes_pictures
    asked = job((said("Look: ", 1),))
    parent = after(asked, seeing.render(asked).with_answer([7]))
    with pytest.raises(AssertionError, match="refused"):
        blind.render(job((said("And?"),), parent))


def test_a_template_that_takes_no_pictures_is_found() -> None:
    text_only = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    model = ModelTemplate(source=text_only, bos_token="", eos_token="<|im_end|>")
    assert TemplateRenderer(model, vocabulary(), pictures=PICTURE_PARTS).probed.picture is None


def test_jinja2_runs_a_template_whose_lists_minijinja_writes_otherwise() -> None:
    source = (
        "{% for message in messages %}<|im_start|>{% if message.content is string %}{{ message.content }}"
        "{% else %}{% for part in message.content %}{% if part.type == 'image' %}<|image_pad|>"
        "{% else %}{{ part.text }}{% endif %}{{ part.items is mapping }}{% endfor %}{% endif %}"
        "<|im_end|>{% endfor %}"
    )
    model = ModelTemplate(source=source, bos_token="", eos_token="<|im_end|>")
    part = PictureForm(part={"type": "image", "items": {}})
    assert TemplateRenderer(model, vocabulary()).template.engine == "minijinja"
    assert TemplateRenderer(model, vocabulary(), pictures=(part,)).template.engine == "Jinja2"


def test_pictures_that_a_role_cannot_have_follow_in_a_message_of_the_user() -> None:
    forms = MessageForms(pictured=("user",))
    one, two = picture_mark(0), picture_mark(1)
    outputs = [ChatMessage(role="tool", content=f"a{one}"), ChatMessage(role="tool", content=two)]
    question = ChatMessage(role="user", content="?")
    moved = [ChatMessage(role="tool", content="a"), ChatMessage(role="tool", content="")]
    follower = ChatMessage(role="user", content=MOVED_PICTURES + one + two)
    assert forms.adapt(outputs) == [*moved, follower]
    assert forms.adapt([*outputs, question]) == [*moved, follower, question]
    assert forms.adapt([question]) == [question]


@EVERY_FAMILY
def test_a_stored_chain_keeps_its_pictures(family: str) -> None:
    codec, seeing = RenderingCodec(), renderer(family)
    asked = job((said("Look: ", 1),))
    rendering = seeing.render(asked)
    for position in (rendering.context, rendering.with_answer([7, 8], counted=60)):
        packed = codec.pack(position, None)
        assert packed is not None
        loaded = codec.unpack(packed, None, position.preface.head)
        assert same(position, loaded)
        assert loaded is not None
        turn = job((said("And ", 2, "?"),), after(asked, loaded))
        later = seeing.render(turn).with_answer([9])
        assert same(later, codec.unpack(codec.pack(later, loaded) or b"", loaded, position.preface.head))
        text = seeing.render(job((said("And?"),), after(asked, loaded))).with_answer([9])
        assert same(text, codec.unpack(codec.pack(text, loaded) or b"", loaded, position.preface.head))


def same(one: Rendered, other: Rendered | None) -> bool:
    return (
        other is not None
        and (one.ids(), one.total, one.digests(), placed(one))
        == (other.ids(), other.total, other.digests(), placed(other))
        and one.body.pictures == other.body.pictures
    )


def test_truncation_drops_items_with_their_pictures() -> None:
    seeing = renderer("qwen_vl")
    items = tuple(said("Look: ", number) for number in (1, 2, 3))
    asked = job(items)
    whole = seeing.render(asked).prompt.total
    shortened = shorten(seeing, asked, TokenBudget(whole - 1))
    assert shortened is not None
    assert shortened.prompt.digests() == [picture(2).digest, picture(3).digest]


def test_nothing_is_foreseen_of_a_context_with_new_pictures() -> None:
    prefill = Prefill(job((said("See", 1),)), "user")
    assert foresee(renderer("qwen_vl"), prefill, UNLIMITED) is None
