"""A language in which every next token follows from all tokens before it, so that greedy answers can be compared."""

import hashlib

VOCABULARY = 512


def next_token(text, end, *, wrong=False, may_end=True):
    """The token after ``text``; ``wrong`` errs at every third place or so, as a smaller model would."""
    digest = hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in text)).digest()
    if may_end and digest[2] < 6:
        return end
    token = 3 + (digest[0] + 256 * digest[1]) % (VOCABULARY - 3)
    return 3 + (token - 2) % (VOCABULARY - 3) if wrong and digest[3] % 3 == 0 else token


def answer(prompt, count, end):
    """What a target says greedily: up to ``count`` tokens, its end token left out."""
    text = list(prompt)
    while len(text) - len(prompt) < count:
        token = next_token(text, end)
        if token == end:
            break
        text.append(token)
    return text[len(prompt) :]
