"""Waiting for something to become true, with a deadline. Tests never sleep for luck."""

import time


def wait_until(predicate, deadline=10.0, what=None, interval=0.01):
    """Polls until `predicate()` is truthy and returns that value; fails after `deadline` seconds."""
    end = time.monotonic() + deadline
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= end:
            what = what or getattr(predicate, "__name__", "condition")
            raise AssertionError(f"not within {deadline} s: {what} (last value: {value!r})")
        time.sleep(interval)


class Stopwatch:
    """`with Stopwatch() as watch: ...`, then `watch.seconds`."""

    def __enter__(self):
        self.began = time.monotonic()
        return self

    def __exit__(self, *_):
        self.seconds = time.monotonic() - self.began
