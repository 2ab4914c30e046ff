"""Row 6: on every socket that any process of a secured cell listens on, whoever does not belong is
refused.

Sockets are found in /proc, not in a list. Each is tried in plaintext, over TLS without a
certificate, with one of another authority, and with one of ours by somebody without a token whose
role is another; over gRPC on every method of the protocol, and over HTTP.
"""

import ipaddress
import ssl
from collections import Counter
from collections.abc import Iterator

import grpc
import httpx

from benchmarks.row import note
from dspark.runtime.channel import sync_channel
from dspark.runtime.roles import METHODS, METRICS, Role
from dspark.runtime.tls import Tls
from tests.faults.rows.program import Args, Rows, statement
from tests.faults.rows.r29_keys import ASK_S, HEALTH, asked
from tests.faults.secured_cell import Listener, SecuredCell

# Any other answer is one; so is silence. A listener may not know the method at all.
REFUSED = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
)
PAGES = ("/metrics", "/", "/v1/models", "/v1/chat/completions", "/health")
# who is alive may be asked, as over gRPC; the live page itself says nothing
OPEN_PAGES = ("/health", "/")
GENERATE = "/dspark.wire.v1.Generation/Generate"


def rows(args: Args) -> Rows:
    with SecuredCell(coordinator={"http": "127.0.0.1:0"}) as cell:
        with cell.client() as client:
            known = {process.name: process for process in client.status().processes}
        listeners = cell.listeners()
        tried, accepted = 0, []
        speaks: Counter[str] = Counter()
        for listener in listeners:
            with _channel(listener, cell.authority.tls("operator")) as channel:
                speech = "grpc" if _answers(channel) else "http"
            speaks[f"{listener.process} {speech}"] += 1
            note(f"{listener.process}: {listener.address}:{listener.port} {speech}")
            for who, tls, role in _strangers(cell):
                for what, let_in in _knock(listener, speech, tls, role):
                    tried += 1
                    if let_in:
                        accepted.append(f"{listener.process}:{listener.port} {what} by {who}")
    wanted = {f"{name} grpc": 1 for name in known} | {f"{name} http": 1 for name in known}
    wanted["coordinator/0 http"] += 1  # the front for OpenAI's clients
    wanted["draft/0 grpc"] += 1  # rounds
    wide = [one for one in listeners if not _near(one.address)]
    value = {
        "listeners": len(listeners),
        "tried": tried,
        "accepted": accepted[:10],
        "unlisted": sorted((speaks - Counter(wanted)).elements()),
        "missing": sorted((Counter(wanted) - speaks).elements()),
        "beyond_loopback": len(wide),
    }
    bars = {
        "0 accepted": not accepted,
        "0 listeners outside the list": speaks == Counter(wanted) and not wide,
    }
    yield statement(
        "6", "strangers refused on every listening socket of a secured cell", value, bars
    )


def _near(address: str) -> bool:
    """Whether only this machine reaches it; IPv4 may be written as IPv6."""
    return ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback


def _strangers(cell: SecuredCell) -> Iterator[tuple[str, Tls | None, Role | None]]:
    """Who knocks: what it shows, and the role of ours that its certificate names."""
    yield "plaintext", None, None
    yield "nobody, over TLS", cell.authority.tls(None), None
    theirs, ours = cell.stranger.tls("node"), cell.authority.tls(None)
    yield "another authority", Tls(theirs.cert, theirs.key, ours.ca), None
    yield "another authority that it believes", theirs, None
    yield "a worker", cell.authority.tls("node"), Role.WORKER
    yield "a client", cell.authority.tls("client-acme"), Role.CLIENT
    yield "a reader of metrics", cell.authority.tls("monitor"), Role.MONITOR


def _knock(
    listener: Listener, speech: str, tls: Tls | None, role: Role | None
) -> Iterator[tuple[str, bool]]:
    """(what was asked, whether it was let in) for everything this role may not do."""
    if speech == "http":
        for page in PAGES:
            wanted = METRICS if page == "/metrics" else METHODS[GENERATE]
            if role is None or not (page in OPEN_PAGES or role in wanted):
                yield page, _http(listener, tls, page)
        return
    with _channel(listener, tls) as channel:
        if role is None:  # not even health is free before TLS
            yield "health", _answers(channel)
        for method, roles in METHODS.items():
            if role not in roles:
                no = REFUSED if role is not None else (*REFUSED, grpc.StatusCode.UNAVAILABLE)
                yield method, asked(channel, method, ()) not in no


def _channel(listener: Listener, tls: Tls | None) -> grpc.Channel:
    return sync_channel(f"127.0.0.1:{listener.port}", tls=tls)


def _answers(channel: grpc.Channel) -> bool:
    """Whether it speaks gRPC to us, though it may know other methods."""
    return asked(channel, HEALTH, ()) in (grpc.StatusCode.OK, grpc.StatusCode.UNIMPLEMENTED)


def _http(listener: Listener, tls: Tls | None, page: str) -> bool:
    scheme, context = "http", ssl.create_default_context(cafile=tls.ca if tls else None)
    if tls is not None:
        scheme = "https"
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key)
    try:
        url = f"{scheme}://127.0.0.1:{listener.port}{page}"
        reply = httpx.get(url, timeout=ASK_S, verify=context, trust_env=False)
    except (OSError, httpx.HTTPError):
        return False
    return reply.status_code not in (401, 403, 404, 405)  # it may not be there, or not to be got
