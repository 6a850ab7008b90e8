#!/bin/bash
# What `trapline watch` sees of a counter of redis under load, beside what redis counts itself: watch-redis.sh FOLDER.
# TRAPLINE and TRAPLINE_REDIS_DEBUG name the command, and a redis-server with debug information (`cargo xtask test` builds one).
R=${TRAPLINE_REDIS_DEBUG:?}
T=${TRAPLINE:-target/release/trapline}
S=$(mktemp -u); O=$1; mkdir -p $O
$R --port 0 --save '' --unixsocket $S --daemonize no >/dev/null 2>&1 &
P=$!
until redis-cli -s $S ping >/dev/null 2>&1; do sleep 0.1; done
own() { redis-cli -s $S info stats | tr -d '\r' | grep total_commands_processed | cut -d: -f2; }
echo "unwatched: $(redis-benchmark -s $S -c ${CLIENTS:-1} -n 120000 -t set -q | tr '\r' '\n' | grep 'requests per' | tail -1)"
rm -f $O/watch.jsonl; before=$(own)
$T watch --json -o $O/watch.jsonl -p $P server.stat_numcommands 2>$O/watch.err &
W=$!
until grep -q watch_start $O/watch.jsonl 2>/dev/null; do sleep 0.05; done
echo "watched: $(redis-benchmark -s $S -c ${CLIENTS:-1} -n 120000 -t set -q | tr '\r' '\n' | grep 'requests per' | tail -1)"
after=$(own)
kill -INT $W; wait $W
echo "redis counted from $before to $after"
awk -F'"after":' '/"type":"watch",/ { split($2, a, ","); if (n++ && a[1] != last + 1) wrong++; if (n == 1) first = a[1]; last = a[1] }
  END { print n " accesses told, values " first " to " last ", out of order or missing: " wrong + 0 }' $O/watch.jsonl
grep -c '"exact":true' $O/watch.jsonl | sed 's/$/ exact/'
tail -1 $O/watch.jsonl
cat $O/watch.err
kill $P; wait $P 2>/dev/null
