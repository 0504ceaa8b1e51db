"""Variables that control thoughts, as they are found in templates."""

from functools import cache

import pytest

from slipring.prompts.templates.detection.probes import Probe
from slipring.prompts.templates.detection.thinking_switches import EFFORTS, ThinkingSwitches, find_switches
from tests.prompts.templates.family_templates import NAMES, render_with_jinja2, source_of

NONE, MINIMAL, LOW, MEDIUM, HIGH, XHIGH = EFFORTS


@cache
def switches(source: str) -> ThinkingSwitches:
    probe = Probe(render_with_jinja2(source), {})
    probe.adapt()
    return find_switches(probe, source)


def toggled(name: str, on: object = True, off: object = False) -> dict[str, dict[str, object]]:
    switched: dict[str, dict[str, object]] = {effort: {name: on} for effort in EFFORTS}
    return switched | {"none": {name: off}}


def leveled(name: str, levels: str) -> dict[str, dict[str, object]]:
    return {effort: {name: level} for effort, level in zip(EFFORTS, levels.split(), strict=True)}


BY_EFFORT = {
    "cohere": toggled("reasoning"),
    "deepseek_v3_1": toggled("thinking"),
    "deepseek_v3_2": toggled("thinking"),
    "deepseek_v4": toggled("thinking") | {"xhigh": {"thinking": True, "reasoning_effort": "max"}},
    "gemma_4": toggled("enable_thinking"),
    "glm_4_5": toggled("enable_thinking"),
    "glm_4_7": toggled("enable_thinking"),
    "gpt_oss": leveled("reasoning_effort", "low low low medium high high"),
    "kimi_k3": {
        "none": {"thinking": False},
        "minimal": {"thinking": True, "thinking_effort": "low"},
        "low": {"thinking": True, "thinking_effort": "low"},
        "medium": {"thinking": True, "thinking_effort": "high"},
        "high": {"thinking": True, "thinking_effort": "high"},
        "xhigh": {"thinking": True, "thinking_effort": "max"},
    },
    "minimax_m3": toggled("thinking_mode", "enabled", "disabled"),
    "nemotron_3": toggled("enable_thinking"),
    "qwen3": toggled("enable_thinking"),
    "qwen3_5": toggled("enable_thinking"),
    "seed_oss": {
        effort: {"thinking_budget": budget}
        for effort, budget in zip(EFFORTS, (0, 512, 1024, 4096, 16384, -1), strict=True)
    },
}
DISTINCT = {
    "deepseek_v4": "none medium xhigh",
    "gpt_oss": "low medium high",
    "kimi_k3": "none low medium xhigh",
    "seed_oss": "none minimal low medium high xhigh",
}
OFF_BY_DEFAULT = ("deepseek_v3_1", "deepseek_v3_2", "deepseek_v4", "gemma_4")
KEEP: dict[str, dict[str, object]] = {
    "deepseek_v4": {"drop_thinking": False},
    "glm_4_7": {"clear_thinking": False},
    "lfm2_5": {"preserve_thinking": True},
    "nemotron_3": {"truncate_history_thinking": False},
    "qwen3_5": {"preserve_thinking": True},
}
KEPT_BY_DEFAULT = ("cohere", "kimi_k3", "minimax_m3", "seed_oss")


@pytest.mark.parametrize("family", NAMES)
def test_each_effort_has_its_variables(family) -> None:
    found = switches(source_of(family))
    assert found.by_effort == BY_EFFORT.get(family, {})
    assert [found.variables(effort) for effort in EFFORTS] == [
        found.by_effort.get(each, {}) for each in EFFORTS
    ]
    toggle = "none medium" if family in BY_EFFORT else ""
    assert found.distinct_efforts() == tuple(DISTINCT.get(family, toggle).split())
    assert found.variables(None) == {}
    assert found.can_be_off == (family in BY_EFFORT and family != "gpt_oss")


@pytest.mark.parametrize("family", NAMES)
def test_the_default_is_found(family) -> None:
    default = switches(source_of(family)).thinks_by_default
    if family not in BY_EFFORT or family in ("gpt_oss", "minimax_m3"):
        assert default is None
    else:
        assert default == (family not in OFF_BY_DEFAULT)


@pytest.mark.parametrize("family", NAMES)
def test_what_keeps_earlier_thoughts_is_found(family) -> None:
    found = switches(source_of(family))
    assert found.keep_variables() == KEEP.get(family, {})
    assert found.keeps_by_default == (family in KEPT_BY_DEFAULT)


PROMPT = "{{- messages[-1].content -}}{%- if add_generation_prompt -%}TAIL{%- endif -%}"


def prompt(tail: str) -> str:
    return PROMPT.replace("TAIL", tail)


def test_a_variable_that_changes_nothing_is_no_switch() -> None:
    assert switches(prompt("{%- if enable_thinking -%}{%- endif -%}")) == ThinkingSwitches()


def test_a_variable_with_a_refused_value_is_no_switch() -> None:
    assert (
        switches(prompt("{{- raise_exception('') if thinking is defined and not thinking -}}"))
        == ThinkingSwitches()
    )


def test_levels_with_one_that_turns_thoughts_off() -> None:
    """Hy3."""
    found = switches(
        prompt(
            "{%- set reasoning_effort = reasoning_effort if reasoning_effort is defined else 'no_think' -%}"
            "{%- set known = reasoning_effort in ['no_think', 'low', 'high'] -%}"
            "{{- reasoning_effort if known else raise_exception('') -}}"
        )
    )
    assert found.by_effort == leveled("reasoning_effort", "no_think low low high high high")
    assert found.can_be_off
    assert found.thinks_by_default is False


def test_levels_of_which_the_lowest_are_special() -> None:
    """Solar."""
    found = switches(prompt("{{- 'briefly' if reasoning_effort in ['minimal', 'low'] else '' -}}"))
    assert found.by_effort == {
        NONE: {"reasoning_effort": "minimal"},
        MINIMAL: {"reasoning_effort": "minimal"},
        LOW: {"reasoning_effort": "low"},
        MEDIUM: {},
        HIGH: {},
        XHIGH: {},
    }
    assert not found.can_be_off


def test_levels_of_which_one_in_the_middle_is_special() -> None:
    found = switches(prompt("{{- 'so so' if reasoning_effort == 'medium' else '' -}}"))
    assert found.by_effort == {effort: {} for effort in EFFORTS} | {MEDIUM: {"reasoning_effort": "medium"}}


def test_a_level_that_is_the_default_is_known_by_its_name_in_the_prompt() -> None:
    """GLM-5.3."""
    found = switches(
        prompt("{{- 'Effort: ' + (reasoning_effort if reasoning_effort in ['low', 'high'] else 'Max') -}}")
    )
    assert found.by_effort == leveled("reasoning_effort", "low low low high high max")
    assert not found.can_be_off


def test_levels_that_are_not_read_are_no_switch() -> None:
    assert switches(prompt("{#- reasoning_effort -#}")) == ThinkingSwitches()


def test_levels_that_are_all_refused_are_no_switch() -> None:
    assert (
        switches(prompt("{{- raise_exception('') if reasoning_effort is defined -}}")) == ThinkingSwitches()
    )
