"""Which picture of a turn a server refuses: servers refuse the request, and do not say which one they mean.

Where more than one picture is new, the server is asked about half of them, and half of those, until one is
left: eight requests for the most pictures that a request may have, and none for turns that do not fail.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from slipring.base.errors import InvalidRequest
from slipring.core.generation import Job
from slipring.engines.grey_square import grey_square_url
from slipring.protocol.items import in_context
from slipring.protocol.pictures.item_pictures import image_param, image_parts, images_of, is_data, plain_url

_ABOUT_PICTURES = re.compile(r"\bimage|multi-?modal|\bPIL\b", re.IGNORECASE)


class NewPicture(NamedTuple):
    param: str
    url: str
    """With its data."""


Refuses = Callable[[Sequence[str]], Awaitable[bool]]
"""Whether a server refuses a message with these pictures."""


def may_be_refused_for_pictures(error: InvalidRequest) -> bool:
    """Whether a server's refusal may be about a picture, by its words."""
    return error.param is None and _ABOUT_PICTURES.search(error.message) is not None


def new_pictures(job: Job) -> list[NewPicture]:
    """The pictures in the new items of a job; none if the data of one is not known, because it may be the one
    that is refused. Decodes the items: not for the event loop."""
    found = []
    for index, item in enumerate(job.input):
        if not (images := images_of(item)):
            continue
        shown, *_ = in_context((item,))  # images that were fetched have their data there
        if len(images_of(shown)) != len(images):  # pages of documents stand there, too
            shown = item
        for image, (_, part) in zip(images, image_parts(shown), strict=True):
            if part.image_url is None or not is_data(part.image_url):
                return []
            found.append(NewPicture(image_param(item, index, image), plain_url(part.image_url)))
    return found


async def refused_picture(new: Sequence[NewPicture], refuses: Refuses) -> NewPicture | None:
    """The picture that the server refuses; None if it refuses none of them alone, or others as well."""
    if len(new) == 1:
        return new[0]
    left = new
    while len(left) > 1:
        half = left[: len(left) // 2]
        left = half if await refuses([each.url for each in half]) else left[len(half) :]
    if not left or not await refuses([left[0].url]):
        return None
    return None if await refuses([grey_square_url()]) else left[0]


def naming(error: InvalidRequest, picture: NewPicture) -> InvalidRequest:
    """The refusal, with the field of the picture."""
    error.message = f"Invalid '{picture.param}': the model's server refuses the image: {error.message}"
    error.args, error.param = (error.message,), picture.param
    return error
