"""A program: trains a SentencePiece model on the lines of its input and writes the model's file to its output.

A process of its own, because training is one long call of a C++ library, in which Python hears no Ctrl-C. It imports
nothing of this package, so that it starts at once. Its arguments: the settings as JSON, and where SentencePiece is.
Exit code 3 means that SentencePiece refused; its reason is the output then.
"""

import io
import json
import signal
import sys

REFUSED = 3


def main() -> int:
    """Train a vocabulary on the lines of standard input and write it to standard output; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it wherever it is
    settings, place = sys.argv[1:]
    sys.path.append(place)
    import sentencepiece

    lines = [line for line in sys.stdin.buffer.read().decode().split("\n") if line]
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, **json.loads(settings)
        )
    except RuntimeError as error:
        sys.stdout.buffer.write(str(error).encode())
        return REFUSED
    sys.stdout.buffer.write(model.getvalue())
    return 0


if __name__ == "__main__":
    sys.exit(main())
