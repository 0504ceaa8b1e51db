"""Pages of models."""

import pytest

from slipring.base.errors import InvalidRequest
from slipring.protocol.messages.models import ModelInfo, ModelPage, page_of

MODELS = [ModelInfo(name, name, "1970-01-01T00:00:00Z", None, None) for name in "abcde"]


def page(limit: str | None = None, after: str | None = None, before: str | None = None) -> ModelPage:
    return page_of(MODELS, limit, after, before)


def ids(found: ModelPage) -> tuple[str, bool]:
    names = "".join(model.id for model in found.data)
    assert (found.first_id, found.last_id) == ((names[0], names[-1]) if names else (None, None))
    return names, found.has_more


def test_pages() -> None:
    assert ids(page()) == ("abcde", False)
    assert ids(page("2")) == ("ab", True)
    assert ids(page("2", after="b")) == ("cd", True)
    assert ids(page("2", after="c")) == ("de", False)
    assert ids(page("2", before="d")) == ("bc", True)
    assert ids(page(before="a")) == ("", False)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "1001"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"limit": "²"}, "limit"),
        ({"after": "z"}, "after_id"),
        ({"before": "z"}, "before_id"),
    ],
)
def test_bad_pages(query: dict[str, str], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        page(**query)
    assert refusal.value.param == param
