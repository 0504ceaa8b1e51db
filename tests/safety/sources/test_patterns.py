"""Patterns and secrets: what is found, what is not, and what a pattern that never ends does."""

import random
import string
import time
from base64 import urlsafe_b64encode

import pytest

from slipring.base.errors import StartupError
from slipring.config.tables import CheckEntry
from slipring.core.tenant_caches import TenantCache
from slipring.safety.source_calls import RunningCheck, SourceFailed
from slipring.safety.sources.pattern_matching import find_matches
from slipring.safety.sources.patterns import (
    RECOGNIZERS,
    Patterns,
    PatternsSettings,
    PersonalData,
    PersonalDataSettings,
)
from slipring.safety.sources.secret_formats import LONGEST, SECRET_FORMATS
from tests.safety.checking import said

_ALPHABET = string.ascii_letters + string.digits
_PATTERNS = [each.as_pattern() for each in SECRET_FORMATS]


def noise(length: int, alphabet: str = _ALPHABET) -> str:
    return "".join(random.Random(length).choices(alphabet, k=length))


_HEADER = urlsafe_b64encode(b'{"alg":"HS256","typ":"JWT"}').decode().rstrip("=")
SECRETS = {
    "secret/anthropic": f"sk-ant-api03-{noise(95)}",
    "secret/aws": "AKIAZ3MSJV4WYJDCQ6LB",
    # An expired token that its owner has published, to show the checksum of the format.
    "secret/github": "ghp_" + "zQWBuTSOoRi4A9spHcVY5ncnsDkxkJ" + "0mLq17",
    "secret/gitlab": f"glpat-{noise(20)}",
    "secret/google": f"AIza{noise(35)}",
    "secret/huggingface": f"hf_{noise(34, string.ascii_letters)}",
    "secret/jwt": f"{_HEADER}.eyJ{noise(60)}.{noise(43)}",
    "secret/npm": "npm_" + "zQWBuTSOoRi4A9spHcVY5ncnsDkxkJ" + "0mLq17",
    "secret/openai": f"sk-proj-{noise(74)}T3BlbkFJ{noise(74)}",
    "secret/private_key": "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk",
    "secret/pypi": f"pypi-AgEIcHlwaS5vcmc{noise(150)}",
    "secret/sendgrid": f"SG.{noise(22)}.{noise(43)}",
    "secret/slack": f"xoxb-{noise(12, string.digits)}-{noise(24)}",
    "secret/slipring": f"sk-slip-{noise(16, '0123456789abcdef')}.{noise(43)}",
    "secret/stripe": f"sk_live_{noise(24)}",
}


def test_every_kind_of_secret_has_a_sample() -> None:
    assert {each.category for each in SECRET_FORMATS} == SECRETS.keys()


@pytest.mark.parametrize("category", SECRETS)
def test_a_secret_is_found_anywhere_and_within_the_promised_length(category: str) -> None:
    secret = SECRETS[category]
    texts = [secret, f"export KEY='{secret}'\n", f'{{"key":"{secret}"}}', secret[:LONGEST]]
    assert find_matches(_PATTERNS, texts) == [{category: 1.0}] * 4


@pytest.mark.parametrize(
    "text",
    [
        "ghp_zQWBuTSOoRi4A9spHcVY5ncnsDkxkJ0mLq18",  # a wrong checksum
        "AKIAAAAAAAAAAAAAAAAA",
        "sk_live_xxxxxxxxxxxxxxxxxxxxxxxx",
        "eyJhbGciOiJub25lIn.eyJ",
        "eyJub3RoaW5nIjoxfQAA.eyJzdWIiOiIxMjM0NTY",
        "-----BEGIN PUBLIC KEY-----",
        "d41d8cd98f00b204e9800998ecf8427e",
        "see https://example.com/a/b?c=d#e and commit 3b40848",
    ],
)
def test_what_only_looks_like_a_secret_is_not_one(text: str) -> None:
    assert find_matches(_PATTERNS, [text]) == [{}]


def test_numbers_can_have_a_check_digit() -> None:
    pattern = ["card", r"\b(?:\d[ -]?){15}\d\b", "luhn"]
    texts = ["4111 1111 1111 1111", "4111 1111 1111 1112"]
    assert find_matches([pattern], texts) == [{"card": 1.0}, {}]


async def test_a_pattern_that_never_ends_fails_and_the_next_text_is_inspected() -> None:
    source = Patterns(PatternsSettings({"slow": r"(a+)+$"}), timeout_s=0.1)
    await source.start()
    try:
        with pytest.raises(SourceFailed, match="takes too long"):
            await source.inspect([said("a" * 40 + "b")], "t")
        assert (await source.inspect([said("aaa")], "t"))[0].scores == {"slow": 1.0}
    finally:
        await source.close()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (PatternsSettings(), "neither patterns nor secrets"),
        (PatternsSettings({"x": "("}), "settings.patterns.x is not a regular expression"),
        (PatternsSettings({"x": "a*"}), "matches the empty text"),
    ],
)
def test_patterns_that_cannot_work_are_refused(settings: PatternsSettings, reason: str) -> None:
    with pytest.raises(StartupError, match=reason):
        Patterns(settings, timeout_s=1)


def test_the_longest_match_is_that_of_the_patterns_in_use() -> None:
    assert Patterns(PatternsSettings(secrets=True), 1).longest_match == LONGEST
    assert Patterns(PatternsSettings({"x": "x"}, longest_match=9), 1).longest_match == 9
    assert Patterns(PatternsSettings({"x": "x"}, secrets=True, longest_match=9), 1).longest_match == LONGEST


PERSONAL = {
    "CreditCardRecognizer": ("CREDIT_CARD", "Pay with 4111 1111 1111 1111."),
    "EmailRecognizer": ("EMAIL_ADDRESS", "Write to jane.doe@example.com."),
    "IbanRecognizer": ("IBAN_CODE", "Send it to DE89 3704 0044 0532 0130 00."),
    "IpRecognizer": ("IP_ADDRESS", "It came from 192.168.10.12."),
    "PhoneRecognizer": ("PHONE_NUMBER", "Call (212) 555-0147."),
    "CryptoRecognizer": ("CRYPTO", "Pay to 16Yeky6GMjeNkAiNcBY7ZhrLoMSgg1BoyZ."),
    "UsSsnRecognizer": ("US_SSN", "It is 457-55-5462."),
}


@pytest.mark.pii
async def test_every_recognizer_of_the_default_is_flagged_by_default() -> None:
    assert tuple(PERSONAL) == RECOGNIZERS
    check = RunningCheck(
        entry := CheckEntry("personal", "pii", timeout_s=60),
        PersonalData(PersonalDataSettings(), entry.timeout_s),
        TenantCache(2**20),
        time.monotonic,
    )
    await check.start()
    try:
        for kind, text in PERSONAL.values():
            (verdict,) = await check.inspect([said(text)], "t")
            assert (verdict.failed, verdict.categories) == (None, (kind,))
        (verdict,) = await check.inspect([said("Order 1700000000 of 2024-01-02, version 1.20.3.")], "t")
        assert not verdict.flagged
    finally:
        await check.close()


@pytest.mark.pii
async def test_a_phone_number_is_flagged_if_it_is_written_as_one() -> None:
    written = ("+1 212 555 0147", "212-555-0147", "+4930901820", "+33 1 42 68 53 00")
    other = ("2125550147", "1700000000", "192.168.10.12", "078-05-1120")
    source = PersonalData(PersonalDataSettings(("PhoneRecognizer",)), timeout_s=60)
    await source.start()
    try:
        found = await source.inspect([said(text) for text in (*written, *other)], "t")
        assert [each.scores.get("PHONE_NUMBER", 0.0) >= 0.5 for each in found] == [True] * 4 + [False] * 4
    finally:
        await source.close()


@pytest.mark.pii
async def test_recognizers_are_chosen_by_name() -> None:
    source = PersonalData(PersonalDataSettings(("CreditCardRecognizer", "IbanRecognizer")), timeout_s=5)
    await source.start()
    try:
        texts = ["4111 1111 1111 1111", "DE89370400440532013000", "a@example.com", "4111 1111 1111 1112"]
        found = await source.inspect([said(text) for text in texts], "t")
        assert [list(each.scores) for each in found] == [["CREDIT_CARD"], ["IBAN_CODE"], [], []]
    finally:
        await source.close()
    unknown = PersonalData(PersonalDataSettings(("NoRecognizer",)), timeout_s=5)
    with pytest.raises(StartupError, match="Presidio has no NoRecognizer"):
        await unknown.start()
    await unknown.close()
