# Programs that start in branches that change their handlers, by two builds, by turns. In: OLD and NEW (two commands),
# HERE (a folder with tree, from tests/victims/tree.c). Out: lines on standard output.
cd "$HERE" || exit 2
ms() { echo $((($(date +%s%N) - $1) / 1000000)); }
leaf() { grep -o '"probe":"[^"]*tree:leaf"[^}]*"hits":[0-9]*' "$1" | grep -o '[0-9]*$' | awk '{ n += $1 } END { print n + 0 }'; }
echo "# $(nproc) CPUs, $(uname -r), $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2-)"
for round in $(seq "${ROUNDS:-2}"); do
    for b in 2 8 16; do
        s=$(date +%s%N); ./tree $b 10 > t.out; echo "$b bare $(ms $s) ms $(cat t.out)"
        for build in OLD NEW; do
            s=$(date +%s%N); ${!build} count -f --json -o t.json "$HERE/tree:leaf" 'libc:*' -- ./tree $b 10 > t.out 2> t.err
            echo "$b $build $(ms $s) ms leaf $(leaf t.json) of $((b * 30)), told late $(grep -c 'may not have waited' t.err), $(head -1 t.out)"
        done
    done
done
