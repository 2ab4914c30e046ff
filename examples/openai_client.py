"""Talks to a cell through its OpenAI-compatible front with the official client (`pip install
openai`).

python examples/openai_client.py "Problem 1: Add 12 and 30."
"""

import sys

from openai import APIError, OpenAI

from dspark.client import DsparkError, find_cell


def main(prompt: str) -> int:
    try:
        # Here: the cluster of this user. Elsewhere: OpenAI(base_url="http://host:8000/v1",
        # api_key="the client token").
        client = OpenAI(base_url=f"{find_cell().http}/v1", api_key="none")
        model = client.models.list().data[0].id
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=64,
            seed=1,
            stream=True,
            stream_options={"include_usage": True},
            # Fields OpenAI does not have go here: vLLM's names, and `speculation`.
            extra_body={
                "per_request_spec_decode_metrics": "summary",
                "speculation": {"policy": "adaptive"},
            },
        )
        for event in stream:
            for choice in event.choices:
                print(choice.delta.content or "", end="", flush=True)
            if event.usage:
                spec = (event.model_extra or {})["metrics"]["speculative_decoding"]
                print(
                    f"\n[{event.usage.completion_tokens} tokens, "
                    f"{spec['mean_acceptance_length']:.2f} a round]"
                )
    except (APIError, DsparkError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:]) or "Once upon a time"))
