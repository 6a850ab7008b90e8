#!/bin/bash
# A C program that only calls, bare and under each recorder, in interleaved rounds: nanoseconds a call more than bare, bytes a call,
# calls recorded and lost. uftrace runs the same source, built with -pg. `count` is the control: it counts and records nothing.
#   tools/bench/runs/record.sh [TRAPLINE [ROUNDS [MILLIONS]]]      one JSON object a line
set -eu
trapline=$(realpath "${1:-target/release/trapline}") rounds=${2:-7} millions=${3:-2}
dir=$(mktemp -d "${TMPDIR:-/tmp}/trapline-record.XXXXXX")
trap 'rm -rf "$dir"' EXIT
cat > "$dir/calls.c" <<'C'
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
__attribute__((noinline)) long leaf(long n) { __asm__ volatile("" ::: "memory"); return n + 1; }
__attribute__((noinline)) long mid(long n) { __asm__ volatile("" ::: "memory"); return leaf(n) + leaf(n + 1) + 1; }
__attribute__((noinline)) long work(long rounds) { long sum = 0; for (long n = 0; n < rounds; n++) sum += mid(n); return sum; }
int main(int argc, char **argv) {
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    long sum = work(atol(argv[1]));
    clock_gettime(CLOCK_MONOTONIC, &to);
    printf("%ld %ld\n", sum, (to.tv_sec - from.tv_sec) * 1000000000 + to.tv_nsec - from.tv_nsec);
}
C
flags=(-O2 -fno-inline -fno-optimize-sibling-calls -fno-ipa-cp -fno-ipa-icf)
cc "${flags[@]}" -o "$dir/calls" "$dir/calls.c"
cc "${flags[@]}" -pg -o "$dir/calls-pg" "$dir/calls.c"
n=$((millions * 1000000)) calls=$((millions * 3000000))
probes=(work mid leaf)
bytes() { du -sb --apparent-size "$1" | cut -f 1; }
lost() { sed -n 's/.* recorded, \([0-9,]*\) missed.*/\1/p' "$dir/said" | tr -d ,; }
row() { # who, nanoseconds, bytes, calls recorded, lost records
    echo "{\"who\":\"$1\",\"round\":$round,\"calls\":$calls,\"ns\":$2,\"bytes\":${3:-0},\"recorded\":${4:-0},\"lost_records\":${5:-0}}"
}
recorded() { "$trapline" report -s func "$dir/d" 2> "$dir/notes" | awk '$6 == "mid" || $6 == "leaf" { all += $5 } END { print all + 0 }'; }
for round in $(seq "$rounds"); do
    for who in bare count record lossless trace uftrace; do
        rm -rf "$dir/d" "$dir/d.trapline" && sync "$dir"
        case $who in
            bare) row bare "$("$dir/calls" $n | cut -d ' ' -f 2)" ;;
            count) row count "$("$trapline" count -q -o "$dir/x.json" "${probes[@]}" -- "$dir/calls" $n | cut -d ' ' -f 2)" ;;
            record)
                ns=$("$trapline" record -o "$dir/d" "${probes[@]}" -- "$dir/calls" $n 2> "$dir/said" | cut -d ' ' -f 2)
                row record "$ns" "$(bytes "$dir/d/calls.trapline")" "$(recorded)" "$(lost)" ;;
            lossless)
                ns=$("$trapline" record --lossless -o "$dir/d" "${probes[@]}" -- "$dir/calls" $n 2> "$dir/said" | cut -d ' ' -f 2)
                row lossless "$ns" "$(bytes "$dir/d/calls.trapline")" "$(recorded)" "$(lost)" ;;
            trace)
                ns=$("$trapline" trace -o "$dir/d.trapline" "${probes[@]}" -- "$dir/calls" $n 2> "$dir/said" | cut -d ' ' -f 2)
                row trace "$ns" "$(bytes "$dir/d.trapline")" "$(sed -n 's/^hits: \([0-9,]*\) recorded.*/\1/p' "$dir/said" | tr -d ,)" "$(lost)" ;;
            uftrace)
                ns=$(uftrace record --no-libcall --no-event --no-pager -d "$dir/d" "$dir/calls-pg" $n 2> "$dir/said" | cut -d ' ' -f 2)
                got=$(uftrace report --no-pager -d "$dir/d" 2> /dev/null | awk '$6 == "mid" || $6 == "leaf" { all += $5 } END { print all + 0 }')
                row uftrace "$ns" "$(bytes "$dir/d")" "$got" "$(grep -ci lost "$dir/said" || true)" ;;
        esac
    done
    # The reader's share: CPU seconds of the tracer itself for one second of a program that runs already; then what report and replay take.
    rm -rf "$dir/d"
    "$dir/calls" 100000000000 > /dev/null & program=$!
    TIMEFORMAT='%U %S'
    used=$({ time "$trapline" record --lossless -q -d 1 -o "$dir/d" -p $program "${probes[@]}" 2> "$dir/said"; } 2>&1)
    kill $program; wait $program 2> /dev/null || true
    TIMEFORMAT='%R %U'
    report=$({ time "$trapline" report "$dir/d" > "$dir/report" 2> "$dir/notes"; } 2>&1)
    replay=$({ time "$trapline" replay "$dir/d" > /dev/null 2> "$dir/notes"; } 2>&1)
    words=$(($(bytes "$dir/d/calls.trapline") / 8))
    lost=$(grep -c 'missing' "$dir/notes" || true)
    echo "{\"who\":\"reader\",\"round\":$round,\"words\":$words,\"cpu_user_sys\":\"$used\",\"report_real_user\":\"$report\",\"replay_real_user\":\"$replay\",\"notes_of_loss\":$lost}"
done
