"""What an engine emits, for tests that run jobs without a server."""

from slipring.core.generation import Delta, Job
from slipring.engines.base import Engine


async def batches_of(engine: Engine, job: Job) -> list[list[Delta]]:
    """Run a job; the batches that were emitted."""
    batches: list[list[Delta]] = []
    await engine.generate(job, batches.append)
    return batches


async def deltas_of(engine: Engine, job: Job) -> list[Delta]:
    """Run a job; all of its deltas."""
    return [delta for batch in await batches_of(engine, job) for delta in batch]
