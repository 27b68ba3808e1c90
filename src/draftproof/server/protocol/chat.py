"""From messages in the shape of OpenAI to a job: what all chat protocols have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftproof.server.jobs import Job
from draftproof.server.protocol.common import Fields, salt, sampling, speculation
from draftproof.server.protocol.tools import Wishes
from draftproof.server.served import Served
from draftproof.vision.reader import has_pictures


async def chat_job(
    fields: Fields,
    served: Served,
    tenant: str,
    messages: Sequence[dict[str, Any]],
    wishes: Wishes,
    template: dict[str, Any],
    *,
    parallel_calls: bool = True,
    **more: Any,
) -> Job:
    """template: variables of the chat template. more: see `sampling`. Raises InvalidRequestError
    and ApiError."""
    prompt = await served.encode_chat(messages, wishes.declared, **template)
    if (grammar := wishes.grammar(served, prompt)) is not None:
        more["grammar"] = grammar
    shown: dict[str, Any] = {}
    if has_pictures(messages):  # the engine reads them; ids alone would lose them
        shown = {"tools": wishes.declared, **template}
    return Job(
        messages if shown else prompt,
        sampling(fields, served, **more),
        speculation(fields, tenant),
        salt(fields.cache_salt, tenant),
        progress=bool(fields.return_progress and fields.stream),
        splitter=wishes.splitter(served, prompt),
        parallel_calls=parallel_calls,
        template=shown,
        prompt_tokens=len(prompt),
    )
