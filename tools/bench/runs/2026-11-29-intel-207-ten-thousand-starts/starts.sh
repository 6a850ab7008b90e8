# Starts a program 10,000 times under `count --all`, with the kernel's uprobe at a function that is called as often.
# In: bpftrace, trapline in $PATH, tracefs mounted. Out: raw.txt.
set -e
gcc -O1 -o brief brief.c && gcc -O1 -w -include stdlib.h -o starts starts.c
bpftrace -e "uprobe:$PWD/brief:twin { @ = count(); }" > kernel.txt & kernel=$!
sleep 6
trapline count --all ./brief:leaf > ours.txt 2>&1 & ours=$!
sleep 2
./starts 10000
kill -INT $ours; wait $ours || true
kill -INT $kernel; wait $kernel || true
tail -n 5 ours.txt; cat kernel.txt; ./starts 500
