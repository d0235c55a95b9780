// A property that must hold for every input: when it does not, the fuzzer stops and keeps the
// input.
#pragma once

#include <cstdio>
#include <cstdlib>

#define HOLDS(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);    \
            std::abort();                                                                          \
        }                                                                                          \
    } while (false)
