"""Streams one answer that goes on where it broke off when the coordinator is lost and comes back.

python examples/resume.py 400

The answer is greedy, so it can be computed again; of one that is drawn the coordinator needs its
journal (`--journal FOLDER`).
"""

import sys

from dspark.client import Client, DsparkError, Finished


def main(tokens: int) -> int:
    try:
        with Client() as client:
            options = {"max_tokens": tokens, "temperature": 0.0, "ignore_eos": True}
            # For up to a minute without news the rest is asked for; no token comes twice and none
            # is missing.
            with client.generate("Problem 1: ", resume_s=60.0, **options) as stream:
                for event in stream:
                    print(event.text, end="", flush=True)
                    if isinstance(event, Finished):
                        print(
                            f"\n[{event.usage.completion_tokens} tokens, resumed {stream.resumed} "
                            "times]"
                        )
    except DsparkError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
