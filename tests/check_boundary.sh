#!/bin/bash
# Checks that the extension has no C++ runtime in it: nothing that throws, allocates with new, needs a
# guard variable, or has a destructor, because ereport() jumps over destructors and an exception that
# escapes ends every session of the server.
#
#   check_boundary.sh              check extension/*.cpp
#   check_boundary.sh FILE...      check these sources instead
#   check_boundary.sh --self-test  prove that good code passes and each kind of bad code is refused
#
# Two looks, because each misses something: the symbols of objects compiled without optimisation, and
# the syntax tree (a destructor behind a call that does not return leaves no symbol).
# Exit status: 0 clean, 1 violations, 2 could not check.
set -u
cd "$(dirname "$0")/.." || exit 2

PG_CONFIG=${PG_CONFIG:-pg_config}
INCLUDE=$($PG_CONFIG --includedir-server) || exit 2
QUERY=$(command -v clang-query || command -v clang-query-14) || { echo "clang-query is not installed"; exit 2; }
FLAGS="-std=c++20 -Wno-register -fno-exceptions -fno-rtti -fno-threadsafe-statics -D_GNU_SOURCE
       -DPGDLLEXPORT= -DINTERLOCK_VERSION=\"0\" -Iextension -I$INCLUDE"
WORK=$(mktemp -d) || exit 2
trap 'rm -rf "$WORK"' EXIT

symbols() {  # symbols FILE: prints forbidden symbols
    local object
    object=$WORK/$(basename "$1").o
    # shellcheck disable=SC2086
    g++ $FLAGS ${EXTRA_FLAGS:-} -O0 -w -c -o "$object" "$1" || return 2
    nm -C "$object" | grep -E '~|operator (new|delete)|__cxa_|std::__throw|_Unwind_|__gxx_personality|guard variable' |
        grep -v '__cxa_finalize' | sed "s|^|$1: symbol: |"
    return 0
}

# A destructor written by hand in the type itself or in a base of it; what is generated from members is
# found by looking at the members.
HAS_DESTRUCTOR='cxxRecordDecl(anyOf(has(cxxDestructorDecl(unless(isImplicit()))), isDerivedFrom(cxxRecordDecl(has(cxxDestructorDecl(unless(isImplicit())))))))'
OURS='unless(isExpansionInSystemHeader())'
OF_SUCH_TYPE="hasType(hasUnqualifiedDesugaredType(anyOf(recordType(hasDeclaration($HAS_DESTRUCTOR)), arrayType(hasElementType(hasUnqualifiedDesugaredType(recordType(hasDeclaration($HAS_DESTRUCTOR))))))))"
tree() {  # tree FILE...: prints destructors, and variables, fields and temporaries of types that have one
    # shellcheck disable=SC2086
    "$QUERY" -c "set output diag" -c "set bind-root true" \
        -c "match cxxDestructorDecl($OURS, unless(isImplicit()))" \
        -c "match varDecl($OURS, $OF_SUCH_TYPE)" \
        -c "match fieldDecl($OURS, $OF_SUCH_TYPE)" \
        -c "match cxxBindTemporaryExpr($OURS)" \
        -c "match cxxThrowExpr($OURS)" -c "match cxxTryStmt($OURS)" \
        -c "match cxxNewExpr($OURS)" -c "match cxxDeleteExpr($OURS)" \
        "$@" -- $FLAGS ${EXTRA_FLAGS:-} -w > "$WORK/tree.out" 2> "$WORK/tree.err" || { cat "$WORK/tree.err"; return 2; }
    if grep -qE '(^|: )(fatal )?error:' "$WORK/tree.err" "$WORK/tree.out"; then
        cat "$WORK/tree.err" "$WORK/tree.out"
        return 2
    fi
    grep -q 'match' "$WORK/tree.out" || { echo "clang-query said nothing"; return 2; }
    grep -E 'note: "root" binds here' "$WORK/tree.out" | sed 's/ note: "root" binds here/ destructor, or something that needs one/' |
        sort -u
    return 0
}

check() {  # check FILE...: 0 clean, 1 violations (printed), 2 could not check
    local found=0 file output
    export -f symbols
    export FLAGS WORK EXTRA_FLAGS
    output=$(printf '%s\n' "$@" | xargs -P 2 -I{} bash -c 'symbols "$1" || exit 255' _ {}) || { echo "$output"; return 2; }
    [ -n "$output" ] && { echo "$output"; found=1; }
    output=$(tree "$@") || { echo "$output"; return 2; }
    [ -n "$output" ] && { echo "$output"; found=1; }
    return $found
}

self_test() {
    local failures=0 name
    write() { cat > "$WORK/$1.cpp"; }
    write good <<'X'
#include "pg.h"
namespace {
struct Plain { int a; std::string_view b; };
template <typename F> int apply(F f) { return f(2); }
}  // namespace
INTERLOCK_FUNCTION(good) {
    Plain plain{PG_GETARG_INT32(0), "text"};
    if (plain.a < 0) ereport(ERROR, (errmsg("negative")));
    PG_RETURN_INT32(apply([&](int x) { return x + plain.a; }));
}
X
    write dead_destructor <<'X'
struct S { int x; ~S() { x = 0; } };
[[noreturn]] void stop();
void f() { S s{1}; stop(); }
X
    write unused_destructor <<'X'
struct S { ~S(); };
X
    write member_destructor <<'X'
#include <string>
struct S { std::string text; };
[[noreturn]] void stop();
void f() { S s; stop(); }
X
    write base_destructor <<'X'
#include <optional>
#include <string>
[[noreturn]] void stop();
void f() { std::optional<std::string> s; stop(); }
X
    write array_of_destructors <<'X'
#include <string>
[[noreturn]] void stop();
void f() { std::string s[2]; stop(); }
X
    write temporary <<'X'
#include <string>
std::string make();
[[noreturn]] void stop(const std::string &);
void f() { stop(make()); }
X
    write operator_new <<'X'
int *f() { return new int(1); }
X
    write throwing <<'X'
void f() { throw 1; }
X
    write catching <<'X'
void g();
void f() { try { g(); } catch (...) { } }
X
    write guarded_static <<'X'
int g();
int f() { static int x = g(); return x; }
X
    write range_check <<'X'
#include <string_view>
char f(std::string_view s) { return s.at(3); }
X
    write container <<'X'
#include <vector>
int f() { std::vector<int> v; v.push_back(1); return v[0]; }
X
    check "$WORK/good.cpp" > "$WORK/said" || { echo "good code was refused:"; cat "$WORK/said"; failures=1; }
    # Let the compiler accept the bad ones: it is this script that has to refuse them.
    EXTRA_FLAGS="-fexceptions -fthreadsafe-statics"
    for name in dead_destructor unused_destructor member_destructor base_destructor array_of_destructors temporary \
                operator_new throwing catching guarded_static range_check container; do
        check "$WORK/$name.cpp" > "$WORK/said"
        case $? in
            1) echo "refused, as it should be: $name ($(wc -l < "$WORK/said") findings)" ;;
            0) echo "NOT refused: $name"; failures=1 ;;
            *) echo "could not check $name:"; cat "$WORK/said"; failures=1 ;;
        esac
    done
    return $failures
}

if [ "${1:-}" = --self-test ]; then
    self_test
    exit
fi
if [ $# -eq 0 ]; then set -- extension/*.cpp; fi
check "$@"
status=$?
[ $status -eq 0 ] && echo "check_boundary: $# files, no C++ runtime"
exit $status
