"""An answer for the live page: every token with its origin, every round with its explanation."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator

from coordinator.http.door import Door
from coordinator.http.live_body import AnswerWish
from coordinator.http.live_prompt import prompt_of
from coordinator.http.live_words import Speaker
from coordinator.http.sse import EventStream, event
from coordinator.lanes.explain import Explain
from coordinator.reception import replies
from coordinator.reception.answering import Answering
from coordinator.requests.tenancy import inside
from dspark.client.request import Sampling, write_request
from dspark.errors import Cancelled


def stream(door: Door, explain: Explain, wish: AnswerWish) -> EventStream:
    """Events of one answer: `begin`, `first`, `round` again and again, `end`."""
    running: list[Answering] = []

    async def events() -> AsyncGenerator[bytes]:
        options = Sampling(
            max_tokens=wish.max_tokens,
            temperature=wish.temperature,
            policy=wish.policy,
            rule=wish.rule,
            seed=wish.seed,
            drafter=wish.drafter,
            request_id=f"live-{secrets.token_hex(8)}",
        )
        prompt, left_out = await prompt_of(door, [each.model_dump() for each in wish.messages], wish.max_tokens)
        message = write_request(prompt, options)
        answering = await Answering.begin(door.desk, message, door.longest_s, door.clock, door.metrics)
        running.append(answering)
        request = answering.request
        try:
            with explain.request(inside(request.tenant, request.id)) as watch:  # before its first round
                speaker = Speaker(request.prompt, door.desk.tokenizer)
                yield event(
                    {
                        "type": "begin",
                        "id": request.id,
                        "prompt_tokens": len(request.prompt),
                        "left_out": left_out,
                        "policy": str(request.policy),
                        "rule": request.law.rule.name.lower(),
                    }
                )
                while not answering.done:
                    await answering.parts()
                    parts = watch.parts()
                    for piece, _ in answering.pieces:
                        yield event(speaker.say(piece, parts))
                        parts = []
                yield event({"type": "end", **ending(answering)})
        finally:
            answering.leave()

    def gone() -> None:
        for answering in running:
            answering.cut(Cancelled("the client went away"))

    return EventStream(events(), gone)


def ending(answering: Answering) -> dict[str, object]:
    """How the answer ended, in numbers."""
    message = replies.complete(answering.reader).complete
    stats, timings = message.speculation, message.timings
    end = answering.reader.readings[0].end
    return {
        "reason": end.reason.value if end is not None else "unknown",
        "tokens": message.usage.completion_tokens,
        "rounds": stats.rounds,
        "drafted": stats.draft_tokens,
        "verified": stats.verified_tokens,
        "accepted": stats.accepted_tokens,
        "tau": round(stats.mean_acceptance_length, 3),
        "first_ms": round(timings.ttft_ms, 2),
        "total_ms": round(timings.total_ms, 2),
    }
