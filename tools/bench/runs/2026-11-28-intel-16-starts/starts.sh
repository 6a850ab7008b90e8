# Delays of starts and of loaded libraries, and many processes at once. In: TRAPLINE (the command), HERE (a folder with
# one, starts, loads, liblater.so and tree). Out: lines on standard output, bare runs and traced ones by turns.
T=${TRAPLINE:-trapline}
cd "$HERE" || exit 2
sum() { grep -o '"hits":[0-9]*' "$1" | awk -F: '{ n += $2 } END { print n + 0 }'; }
marked() { for i in $(seq 500); do grep -qs 'fanotify ino' /proc/"$1"/fdinfo/* && return; sleep 0.02; done; echo "no marks"; }
ms() { echo $((($(date +%s%N) - $1) / 1000000)); }
echo "# $(nproc) CPUs, $(uname -r), $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2-)"
for round in $(seq "${ROUNDS:-3}"); do
    echo "starts bare $(./starts 1000 ./one)"
    $T count --all --json -o all.json "$HERE/one:one" > /dev/null 2> all.err & p=$!
    marked $p
    echo "starts all $(./starts 1000 ./one)"
    echo "starts other $(./starts 1000 /bin/true)"
    kill -INT $p; wait $p
    echo "starts all hits $(sum all.json)"
    echo "starts follow $($T count -f --json -o f.json "$HERE/one:one" -- ./starts 1000 ./one 2> /dev/null) hits $(sum f.json)"
    echo "loads bare $(./loads 300 ./liblater.so)"
    echo "loads traced $($T count --wait --json -o l.json "$HERE/liblater.so:later" -- ./loads 300 ./liblater.so 2> /dev/null) hits $(sum l.json)"
done
for n in 100 1000; do
    mkfifo hold; exec 3<> hold
    for i in $(seq $n); do ./one wait < hold 3>&- & done
    sleep 2
    s=$(date +%s%N)
    $T count --json "$HERE/one:one" > many.json 2> many.err 3>&- & p=$!
    for i in $(seq 3000); do
        m=$(grep -ls 'memfd:trapline' $(pgrep -x one | sed 's|.*|/proc/&/maps|') | wc -l)
        [ "$m" -ge "$n" ] && break
        sleep 0.05
    done
    echo "many $n: $m patched after $(ms $s) ms, $(grep -E 'VmHWM|Threads' /proc/$p/status | tr -s '\t\n ' ' ')"
    sleep 1
    exec 3>&-; rm hold
    s=$(date +%s%N); wait $p
    echo "many $n: hits $(sum many.json), over after $(ms $s) ms; $(grep -E '^cost|^memory|note' many.err | head -3 | tr '\n' ';')"
    wait
done
for b in 2 8 16; do
    s=$(date +%s%N); ./tree $b 30 > t.out; echo "tree $b bare $(ms $s) ms $(cat t.out)"
    s=$(date +%s%N); $T count -f --json -o t.json "$HERE/tree:leaf" -- ./tree $b 30 > t.out 2> t.err
    echo "tree $b follow $(ms $s) ms hits $(sum t.json) of $((b * 30 * 3)) $(head -1 t.out)"
    s=$(date +%s%N); $T count -f --json -o t.json "$HERE/tree:leaf" 'libc:*' -- ./tree $b 30 > t.out 2> t.err
    echo "tree $b follow libc:* $(ms $s) ms leaf $(grep -o '"probe":"[^"]*tree:leaf"[^}]*"hits":[0-9]*' t.json | grep -o '[0-9]*$' | awk '{ n += $1 } END { print n + 0 }') $(head -1 t.out)"
done
