"""Four ways to end an answer before its end; each frees everything it held, at once.

python examples/cancel.py
"""

import sys

from dspark.client import Client, DeadlineExceeded, DsparkError, Finished

LONG = {"max_tokens": 2_000, "ignore_eos": True}


def main() -> int:
    try:
        with Client() as client:
            for event in client.generate("It was a dark night", **LONG):
                if event.token_ids:
                    print("left the loop after", len(event.token_ids), "tokens")
                    break

            with client.generate("It was a dark night", **LONG) as stream:
                next(stream)  # leaving the block ends the request, whatever happens inside
            print("left the block")

            try:
                client.complete("It was a dark night", timeout=0.5, **LONG)
            except DeadlineExceeded as late:
                print(late)

            # By id, from anywhere: the answer ends in good order and says so.
            stream = client.generate("It was a dark night", request_id="my-request", **LONG)
            next(stream)
            print("ended by id:", *client.abort(["my-request"]))
            for event in stream:
                if isinstance(event, Finished):
                    print("finish reason:", event.finish_reason)
    except DsparkError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
