"""The data of the pictures in a context, for engines that are sent it again."""

from slipring.core.generation import Job
from slipring.prompts.rendering import Rendered
from slipring.protocol.pictures import image_parts, pictures


def data_urls(job: Job, sent: Rendered) -> list[str]:
    """The data URLs of the pictures in ``sent``, the context of a job, in their order. Walks all items."""
    wanted = sent.digests()
    urls: dict[str, str] = {}
    for item in job.context():
        for picture, (_, part) in zip(pictures(item), image_parts(item), strict=True):
            assert part.image_url is not None, "engines see pictures with their data only"
            urls[picture.digest] = part.image_url
    return [urls[digest] for digest in wanted]
