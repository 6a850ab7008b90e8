#!/bin/bash
# trapline trace -o FILE of a function that one CPU calls five million times a second for ten seconds, the reader on a CPU of its own:
# what was written, what was lost, and that both are all hits. Needs two CPUs, a C compiler, and room in /dev/shm.
#   tools/bench/runs/flow.sh [TRAPLINE [ROUNDS [SUFFIX…]]]
set -eu
trapline=$(realpath "${1:-target/release/trapline}") rounds=${2:-3}
[ $# -gt 2 ] && suffixes=("${@:3}") || suffixes=(trapline txt csv json)
dir=$(mktemp -d /dev/shm/trapline-flow.XXXXXX)
trap 'rm -rf "$dir"' EXIT
cat > "$dir/flow.c" <<'C'
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
static volatile uint64_t sink;
__attribute__((noinline)) uint64_t sent(uint64_t a, uint32_t b, int64_t c) { return sink = a ^ b ^ (uint64_t)c; }
static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}
int main(int argc, char **argv) {
    char line[64];
    double rate = argc > 1 ? atof(argv[1]) : 5e6, seconds = argc > 2 ? atof(argv[2]) : 10;
    while (fgets(line, sizeof line, stdin)) {
        uint64_t begun = now(), passed = 0, done = 0, end = (uint64_t)(seconds * 1e9);
        while (passed < end) {
            for (uint64_t due = (uint64_t)((double)passed * rate / 1e9); done < due; done++) {
                sent(done, (uint32_t)done * 2654435761u, -(int64_t)done);
                if (done % 64 == 63 && (passed = now() - begun) >= end) break;
            }
            passed = now() - begun;
        }
        printf("%lu %.3f\n", done, (double)(now() - begun) / 1e9);
        fflush(stdout);
    }
}
C
cc -O2 -o "$dir/flow" "$dir/flow.c"
# Records a second: a call with its return is two.
for what in entry:5e6 call:2.5e6; do
    for suffix in "${suffixes[@]}"; do
        for round in $(seq "$rounds"); do
            coproc FLOW { exec taskset -c 0 "$dir/flow" "${what#*:}" "${SECONDS_EACH:-10}"; }
            until [ "$(readlink "/proc/$FLOW_PID/exe")" = "$dir/flow" ]; do sleep 0.1; done
            flags=(); [ "${what%%:*}" = entry ] && flags=(--entry-only)
            taskset -c 1 "$trapline" trace "${flags[@]}" -o "$dir/calls.$suffix" -p "$FLOW_PID" \
                'sent(u64 a, u32 b, i64 c) -> u64' 2> "$dir/said" & tracer=$!
            until grep -q memfd:trapline "/proc/$FLOW_PID/maps"; do sleep 0.1; done
            # A host that takes free memory back gives it again at a fraction of the speed of a copy: as much as the file will take is had before.
            dd if=/dev/zero of="$dir/room" bs=1M count=3400 status=none
            sleep 0.5
            rm "$dir/room"
            echo >&"${FLOW[1]}"; read -r hits seconds <&"${FLOW[0]}"
            kill -INT $tracer; wait $tracer || true
            case $suffix in
                txt) lines=$(wc -l < "$dir/calls.txt") ;;
                csv) lines=$(($(wc -l < "$dir/calls.csv") - 1)) ;;
                # A condition that nothing fulfils: all that is in the file is read, put together, and left out.
                trapline) lines=$("$trapline" trace --from "$dir/calls.trapline" --if 'tid == 1' 2>&1 | sed -n 's/^note: \([0-9,]*\) calls are left out here/\1/p' | tr -d ,) ;;
                json) lines=$(grep -c '"type":"call"' "$dir/calls.json") ;;
            esac
            echo "${what%%:*} $suffix: $hits calls in $seconds s, $lines lines, $((hits - lines)) lost; $(stat -c %s "$dir/calls.$suffix") bytes"
            grep -i -E 'missed|room|unpaired|returns in' "$dir/said" || true
            rm "$dir/calls.$suffix"; kill "$FLOW_PID"; wait "$FLOW_PID" 2> "$dir/none" || true
        done
    done
done
