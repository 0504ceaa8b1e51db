"""The states of background responses that have not finished: those in progress, cancelled ones, failed ones.

A run writes what its response began with, as soon as no safety check holds that back. A response that is
cancelled or fails is stored with it and with the output items that were complete, and is then like any other:
it can be continued, listed and compacted. If its input was refused, nothing of it is stored.
"""

from msgspec import structs

from slipring.base.errors import InvalidEncryptedContent, InvalidPrompt
from slipring.core.chain import hosted_items, input_items, sealed_items
from slipring.core.chain.sealed_items import Seal
from slipring.core.chain.state import ResponseState
from slipring.protocol.items import read_item
from slipring.protocol.responses import Response
from slipring.stores.runs import Lease
from slipring.stores.store import Store


async def find(store: Store, seal: Seal, tenant: str, response: Response) -> ResponseState | None:
    """The state of the response of an open run. None: what it began with is not in the store, what it
    continues has been deleted, or its output was sealed with a key that this node does not have."""
    beginning = await store.runs.beginning(tenant, response.id)
    if beginning is None:
        return None
    parent: ResponseState | None = None
    if beginning.parent_id is not None:
        parent = await store.responses.load(tenant, beginning.parent_id)
        if parent is None:
            return None
    items = tuple(read_item(bytes(raw), f"output[{index}]") for index, raw in enumerate(response.output))
    try:
        output = sealed_items.opened(items, seal, tenant, "output")
    except InvalidEncryptedContent:
        return None
    carry = input_items.join(input_items.carried(parent), beginning.input, complete=False)
    carry = hosted_items.denied(carry)
    if beginning.is_upstream:
        # Lists and approvals of another server mean nothing here.
        carry = structs.replace(input_items.after_output(carry, output), lists={}, approvals={})
    else:
        output = hosted_items.opened(output)
        carry = input_items.after_output(carry, output)
    return ResponseState(
        response=response,
        parent=parent,
        head=beginning.head,
        input=beginning.input,
        output=output,
        carry=carry,
        fork=True,
    )


async def save(store: Store, seal: Seal, lease: Lease, response: Response) -> None:
    """Store a response that has been cancelled or has failed, before its run ends. Raises ``LeaseLost``."""
    is_refused = response.error is not None and response.error.code == InvalidPrompt.code
    if response.status not in ("cancelled", "failed") or is_refused:
        return
    if await store.responses.retrieve(lease.tenant, response.id) is not None:
        return  # it has failed in a later step, and its turn has saved it
    state = await find(store, seal, lease.tenant, response)
    if state is not None:
        await store.responses.save(lease.tenant, state, lease=lease)
