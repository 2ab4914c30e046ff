"""`dspark chat`: a conversation in the terminal, through the target's own chat template."""

from __future__ import annotations

import argparse
import contextlib
import io
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from dspark.cli import health
from dspark.cli.options import add_asking, as_utf_8, open_client, positive, say, shown
from dspark.errors import ConfigError, DsparkError

if TYPE_CHECKING:
    from dspark.client import Client

ANSWER = 512  # longest answer, in tokens
PROMPT = "> "
_OPTIONS = ("max_tokens", "temperature", "top_p", "seed", "policy", "rule")

Message = dict[str, str]
Render = Callable[[list[Message]], tuple[int, ...]]


def add_commands(commands: Any) -> None:
    parser = commands.add_parser(
        "chat",
        help="talk with the target",
        description="Turn by turn, through the target's chat template. Ctrl-C interrupts an answer "
        "and keeps what was said; Ctrl-D ends. Where the context is full the oldest turns are "
        "left out.",
    )
    add = parser.add_argument
    add("--system", metavar="TEXT", help="what the target is told before the first turn")
    add("--max-tokens", type=positive, default=ANSWER, help="longest answer")
    add("--target", help="whose template and tokenizer are used (those of the served model)")
    add_asking(parser, "coordinator or front end; default: the cluster of this state folder")
    parser.set_defaults(run=_chat)


class InterruptHandler:
    """Handles Ctrl-C: it stops what runs inside `listening`; elsewhere it interrupts nothing and
    sets `over`, after which the conversation ends."""

    def __init__(self) -> None:
        self.over = False
        self._stop: Callable[[], object] | None = None
        with contextlib.suppress(ValueError):  # only the main thread may set handlers
            signal.signal(signal.SIGINT, self._heard)

    @contextlib.contextmanager
    def listening(self, stop: Callable[[], object]) -> Iterator[None]:
        """Calls `stop` at Ctrl-C inside this context."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None

    def _heard(self, *_: object) -> None:
        if self._stop is not None:
            self._stop()
        else:
            self.over = True


def _interrupt() -> NoReturn:
    raise KeyboardInterrupt


def _chat(args: argparse.Namespace) -> int:
    args.system = as_utf_8("system", args.system)
    if args.wait is not None:
        health.wait_for(args)
    with open_client(args) as client:
        info = client.model_info()
        render = renderer(args.target or info.model)
        if args.max_tokens >= info.context_length:
            raise ConfigError(
                f"--max-tokens: {args.max_tokens} leaves no room in {info.context_length} tokens"
            )
        room = info.context_length - args.max_tokens
        options = {name: getattr(args, name) for name in _OPTIONS}
        said: list[Message] = [{"role": "system", "content": args.system}] if args.system else []
        say(
            f"{info.model.rstrip('/').rpartition('/')[2]} answers; Ctrl-C interrupts it, Ctrl-D "
            "ends"
        )
        ears, failed = InterruptHandler(), False
        for turn in turns(ears):
            said.append({"role": "user", "content": turn})
            try:
                said[-1]["content"] = as_utf_8("this line", turn)
                prompt = fitted(said, render, room)
                said.append(
                    {"role": "assistant", "content": _answer(client, prompt, options, ears)}
                )
            except DsparkError as error:
                say(f"dspark: {error}")
                said.pop()  # so that the user can repeat it
                failed = True
            if ears.over:
                break
    # who typed it has read it; a script is to know
    return 1 if failed and not sys.stdin.isatty() else 0


def renderer(target: str) -> Render:
    """A function from a conversation to token ids. ConfigError if the target has no template or
    tokenizer, or is not on this machine."""
    from coordinator.http.template import find_template
    from coordinator.reception.tokenizer import find_tokenizer

    tokenizer = None
    with contextlib.suppress(ConfigError):  # neither a folder nor in the hub's cache
        tokenizer = find_tokenizer(target, None)
    # each file takes half a minute where the hub is out of reach
    template = find_template(target, None) if tokenizer is not None else None
    if template is None or tokenizer is None:
        missing = "tokenizer" if tokenizer is None else "chat template"
        raise ConfigError(
            f"{target}: no {missing} is found; --target names a folder with it, `dspark generate` "
            "takes plain prompts"
        )

    def render(said: list[Message]) -> tuple[int, ...]:
        text = template.render(said, {}, add_generation_prompt=True)
        return tokenizer.encode(text, add_special=False)  # the template writes special tokens

    return render


def turns(ears: InterruptHandler) -> Iterator[str]:
    """Yields typed lines until Ctrl-D; empty lines are skipped."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # one undecodable line does not end all
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401, it gives `input` its line editing
    while True:
        try:
            with ears.listening(_interrupt):
                line = input(PROMPT if sys.stdin.isatty() else "")
        except EOFError:
            if sys.stdin.isatty():
                print()
            return
        except KeyboardInterrupt:
            say("\nCtrl-D ends")
            continue
        if line.strip():
            yield line


def fitted(said: list[Message], render: Render, room: int) -> tuple[int, ...]:
    """The prompt, within `room` tokens: if it is longer, the oldest questions and answers are
    deleted from `said`."""
    from coordinator.http.template import newest_that_fit

    prompt, left_out = newest_that_fit(said, room, render)
    first = 1 if said[0]["role"] == "system" else 0
    del said[first : first + left_out]
    return prompt


def _answer(
    client: Client, prompt: tuple[int, ...], options: dict[str, Any], ears: InterruptHandler
) -> str:
    """Prints one answer as it streams, and its speed; Ctrl-C ends it. Returns its text."""
    from dspark.client import Cancelled, Finished

    text, tokens, end = "", 0, None
    try:
        # Closed, not interrupted: an exception inside gRPC could leave its locks held.
        with client.generate(prompt, **options) as stream, ears.listening(stream.close):
            if ears.over:
                stream.close()
            for event in stream:
                text += event.text
                tokens += len(event.token_ids)
                print(shown(event.text), end="", flush=True)
                if isinstance(event, Finished):
                    end = event
    except Cancelled:
        pass
    finally:
        print(flush=True)
    if end is None:
        say(f"[interrupted after {tokens} tokens]")
    else:
        rate = 1000 / end.timings.itl_ms if end.timings.itl_ms else 0.0
        spec, cut = end.speculation, " (the most)" if end.finish_reason == "length" else ""
        say(
            f"[{tokens} tokens{cut}, {rate:.1f} tokens/s, {spec.mean_acceptance_length:.2f} tokens "
            "a round]"
        )
    return text
