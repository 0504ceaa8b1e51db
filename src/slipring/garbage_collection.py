"""When a serving process looks for garbage: neither while it starts, nor among what it has loaded, nor at its
end."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Collect nothing while the block imports modules, and exempt from later collections what exists at its
    end. What modules define stays for good, and looking for garbage among it again and again takes an eighth
    of the time in which a server starts."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def exempt_from_collection() -> None:
    """Exempt what exists now from garbage collection. For a process that has just started: what it has loaded
    stays for good, and full collections need not look at it."""
    gc.collect()
    gc.freeze()


def skip_last_collection() -> None:
    """Exempt every object from the collection with which the interpreter exits. It takes a tenth of a second,
    and the kernel frees the memory anyway."""
    gc.freeze()
