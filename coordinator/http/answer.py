"""The one way from a checked body to a response, streamed or whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fastapi import Request
from starlette.responses import Response

from coordinator.http.asking import Asking, Prompt, new_id
from coordinator.http.door import Door
from coordinator.http.paced import paced_events, paced_whole
from coordinator.http.reply import Frame, Shape, streamed_reply, whole_reply
from coordinator.http.schema import Body
from coordinator.http.spec_metrics import Detail
from coordinator.http.sse import EventStream, while_connected
from dspark.client.request import Sampling
from dspark.errors import InvalidRequest

ID_HEADER = "x-request-id"
METRICS_HEADER = "x-spec-decode-metrics"


async def answered(
    door: Door,
    request: Request,
    body: Body,
    prompts: Sequence[Prompt],
    options: Sampling,
    shape: Shape,
    *,
    kind: str,
    names: Mapping[str, str] | None = None,
) -> Response:
    """kind: first word of the id. names: what fields of the gRPC interface are called in this body."""
    terms = door.desk.cell.terms()
    model = door.check_model(body.model, terms)
    given = request.headers.get(ID_HEADER)
    name, detail = new_id(kind, given), _detail(request, body)
    frame = Frame.of(body, name, model, terms.block_size, detail, door.fingerprint(terms))
    try:
        trace = request.headers.get("traceparent", "")
        asking = await Asking.begin(door, prompts, options, name, trace=trace, record=detail != "none")
    except InvalidRequest as error:
        if names is None or error.field not in names:
            raise
        raise type(error)(names[error.field], str(error).removeprefix(f"{error.field}: ")) from error
    headers = {ID_HEADER: given or name}
    longest = max(answering.request.max_tokens for answering in asking.answerings)
    if body.stream:
        events = streamed_reply(asking, shape, frame)
        if door.pace is not None:
            events = paced_events(events, door.pace, longest)
        return EventStream(
            events, asking.gone, headers, unread_s=door.unread_s, on_cut=door.metrics.slow_readers_cut.inc
        )
    try:
        answer = while_connected(request, whole_reply(asking, shape, frame), asking.gone)
        if door.pace is not None:
            answer = paced_whole(answer, door.pace, longest)
        return Response(await answer, media_type="application/json", headers=headers)
    finally:
        asking.leave()


def _detail(request: Request, body: Body) -> Detail:
    """Asked for in the body, or by a header where a tool writes the body."""
    if body.per_request_spec_decode_metrics is not None:
        return body.per_request_spec_decode_metrics
    match request.headers.get(METRICS_HEADER, "none"):
        case "none":
            return "none"
        case "summary":
            return "summary"
        case "detailed":
            return "detailed"
    raise InvalidRequest(METRICS_HEADER, "must be none, summary or detailed")
