"""Streams one answer from the cluster that `dspark up` started. Needs grpcio and protobuf alone.

python examples/stream.py "def fibonacci(n):"
"""

import sys

from dspark.client import Client, DsparkError, Finished


def main(prompt: str) -> int:
    # Without an endpoint: the cluster of this user. Elsewhere: Client("host:port", token="...").
    try:
        with Client() as client:
            for event in client.generate(
                prompt, max_tokens=64, temperature=0.7, seed=1, timeout=60
            ):
                print(event.text, end="", flush=True)
                if isinstance(event, Finished):
                    spec = event.speculation
                    print(
                        f"\n[{event.usage.completion_tokens} tokens, "
                        f"{spec.mean_acceptance_length:.2f} a round]"
                    )
    except DsparkError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:]) or "Once upon a time"))
