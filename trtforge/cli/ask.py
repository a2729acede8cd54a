"""Ask a running server one question over gRPC and print the answer as it streams.

``python -m trtforge.cli.ask HOST:PORT MODEL 'question'``
"""

from __future__ import annotations

import sys

from launcher.client import StreamClient
from trtforge.ground.errors import ForgeError


def main(arguments: list[str] | None = None) -> int:
    """0 when answered, 2 on wrong usage or a refusal."""
    given = sys.argv[1:] if arguments is None else arguments
    if given in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if len(given) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    url, model, question = given
    try:
        with StreamClient(url, model) as client:
            client.send({"text_input": question, "max_tokens": 64, "chat": True, "stream": True})
            for text, _ in client.receive(timeout=120.0):
                print(text, end="", flush=True)
    except ForgeError as error:
        print(": ".join(part for part in (str(error), error.why) if part), file=sys.stderr)
        return 2
    print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
