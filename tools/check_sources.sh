#!/usr/bin/env bash
# Checks the source tree without running it. Usage: tools/check_sources.sh CHECK [all|move]
#   format   clang-format 14 changes no file
#   scripts  shellcheck and Python find no fault in the scripts
#   headers  every header compiles alone: those changed since the base, with `all` all
#            (the base: the last commit that changed the line "checked" of cmake/tidy_base)
#   tidy     clang-tidy finds nothing: in the .cpp files changed since that base in the rooms it names; with `all` in every
#            .cpp file of those rooms; with `move` likewise, and then the base moves
# Exit status: 0 nothing was found, 1 something was (it is printed), 77 not run (the reason is printed).
# KVSCOPE_CHECK_JOBS is how many compilers run at once; without it one per core.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
check=${1:-} scope=${2:-changed}
jobs=${KVSCOPE_CHECK_JOBS:-$(nproc)}
tidy_base=cmake/tidy_base

skip() {
    echo "not run: $1"
    exit 77
}

# The sources that we wrote: git's list, or without git every file of the source folders.
sources() { # patterns...
    if git rev-parse --git-dir >/dev/null 2>&1; then
        git ls-files --cached --others --exclude-standard -- "$@"
    else
        local pattern
        for pattern in "$@"; do find base kernels core profiler ui app bench tests resources tools -name "$pattern"; done
    fi
}

# The base: the last commit that changed the line "checked" of cmake/tidy_base. Its hash stands nowhere in the tree, so that it
# is found also after a rebase. Nothing in a shallow clone, where git cannot tell, and where there is no git.
base() {
    [ "$(git rev-parse --is-shallow-repository 2>/dev/null)" = false ] && git log -1 --format=%H -G '^checked ' -- "$tidy_base"
}

# Of the files on standard input, those that differ from the base. Without a base: all.
changed() {
    local base
    if [ "$scope" = changed ] && base=$(base) && [ -n "$base" ]; then
        # Status 1 of grep says that no file differs.
        grep -Fxf <(git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard) || [ $? -eq 1 ]
    else
        cat
    fi
}

# A build folder that is configured and never built: it says how each file is compiled, alone and not in batches.
database() {
    database=build/checks
    if [ ! -f "$database/compile_commands.json" ]; then
        cmake --preset dev -B "$database" >/dev/null 2>&1 || { echo "cmake --preset dev -B $database failed"; exit 1; }
    fi
}

case $check in
format)
    tool=$(command -v clang-format-14 || command -v clang-format) || skip "clang-format 14 is not installed (apt: clang-format-14)"
    case $("$tool" --version) in
    *"version 14."*) ;;
    *) skip "$("$tool" --version) formats in another way than clang-format 14" ;;
    esac
    sources '*.cpp' '*.h' '*.cu' '*.cuh' | tr '\n' '\0' | xargs -0 -P "$jobs" -n 40 "$tool" --dry-run -Werror
    ;;
scripts)
    status=0
    if command -v shellcheck >/dev/null; then
        { sources '*.sh'; ls run test .ci/run; } | tr '\n' '\0' | xargs -0 shellcheck --severity=warning || status=1
    else
        echo "shellcheck is not installed (apt: shellcheck); the shell scripts are not checked"
    fi
    command -v python3 >/dev/null || exit "$status"
    sources '*.py' | python3 -c '
import sys
status = 0
for name in sys.stdin.read().split():
    try:
        compile(open(name, encoding="utf-8").read(), name, "exec")
    except SyntaxError as error:
        print(f"{name}:{error.lineno}: {error.msg}")
        status = 1
sys.exit(status)' || status=1
    exit "$status"
    ;;
headers)
    command -v python3 >/dev/null || skip "python3 is not installed"
    database
    sources '*.h' | changed | python3 tools/headers_alone.py "$database/compile_commands.json" "$jobs"
    ;;
tidy)
    tool=$(command -v clang-tidy-14) || skip "clang-tidy 14 is not installed (apt: clang-tidy-14)"
    planted=$("$tool" --quiet tools/planted_fault.cpp -- -std=c++20 2>/dev/null)
    for fault in bugprone-easily-swappable-parameters bugprone-use-after-move; do
        grep -q "$fault" <<<"$planted" || { echo "clang-tidy does not find the $fault planted in tools/planted_fault.cpp"; exit 1; }
    done
    database
    rooms=$(sed -n 's/^room //p' "$tidy_base" | tr '\n' ' ')
    files=$(for room in $rooms; do sources "$room/*.cpp"; done | awk -F/ -v rooms="$rooms" '
        BEGIN { count = split(rooms, list, " "); for (i = 1; i <= count; ++i) known[list[i]] = 1 }
        { folder = $0; sub("/[^/]*$", "", folder); if (folder in known) print }' | changed)
    if [ -n "$files" ]; then
        # Options that only GCC knows are no fault.
        printf '%s\n' "$files" | tr '\n' '\0' |
            xargs -0 -P "$jobs" -n 1 "$tool" -p "$database" --quiet --extra-arg=-Wno-unknown-warning-option \
                --extra-arg=-Wno-ignored-gch 2>/dev/null || exit 1
    fi
    echo "clang-tidy: $(printf '%s' "$files" | grep -c .) files"
    [ "$scope" = move ] || exit 0
    [ -z "$(git status --porcelain)" ] || { echo "clang-tidy: the base stays: there are changes that no commit has"; exit 0; }
    sed -i "s/^checked .*/checked $(date -u '+%Y-%m-%d %H:%M')/" "$tidy_base"
    echo "clang-tidy: commit $tidy_base alone, and that commit is the base"
    ;;
*)
    sed -n '2,8s/^# \{0,1\}//p' "$0"
    exit 1
    ;;
esac
