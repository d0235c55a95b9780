"""The differential suite: whatever the router accepts must do what one unsharded database does.

`python3 -m differential --help` (in tests/) runs it by hand; test_differential.py runs it in `make check`.
"""
