"""Makes a failing statement small: drops pieces of its text as long as it still fails."""

import re

TOKEN = re.compile(r"""\s+|--[^\n]*|/\*.*?\*/|\$q\$.*?\$q\$|[EeUuNnBbXx]?&?'(?:[^']|'')*'|"(?:[^"]|"")*"|\d+\.\d*|\w+|::|<=|>=|<>|->>|->|.""", re.S)
MOST_TRIES = 600


def shrink(text, fails):
    """`fails(text)`: whether that text still shows the fault. Returns the smallest text found."""
    tokens = [token for token in TOKEN.findall(text) if not token.isspace() and not token.startswith(("--", "/*"))]
    tries = 0

    def attempt(some):
        nonlocal tries
        tries += 1
        return tries < MOST_TRIES and fails(" ".join(some))

    if not attempt(tokens):
        return text
    size = max(1, len(tokens) // 2)
    while size:
        at, changed = 0, False
        while at < len(tokens):
            rest = tokens[:at] + tokens[at + size:]
            if rest and balanced(tokens[at:at + size]) and attempt(rest):
                tokens, changed = rest, True
            else:
                at += 1 if size < 8 else size // 2
        size = size if changed and size < 4 else size // 2
    at = 0
    while at < len(tokens):  # parentheses that hold nothing together
        end = closing(tokens, at)
        rest = tokens[:at] + tokens[at + 1:end] + tokens[end + 1:] if end else []
        if rest and attempt(rest):
            tokens = rest
        else:
            at += 1
    return " ".join(tokens)


def closing(tokens, at):
    """The place of the parenthesis that closes the one at `at`; None if there is none."""
    depth = 0
    for place in range(at, len(tokens) if tokens[at] == "(" else at):
        depth += (tokens[place] == "(") - (tokens[place] == ")")
        if depth == 0:
            return place
    return None


def balanced(tokens):
    depth = 0
    for token in tokens:
        depth += (token == "(") - (token == ")")
        if depth < 0:
            return False
    return depth == 0
