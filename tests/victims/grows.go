// Goroutines with stacks that grow inside calls, and calls that end by a recovered panic or on another
// thread. `run N` makes N rounds, each in a goroutine of its own with a stack that is small at first. The
// answer is how often each function was called, as counted by the callers.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
)

//go:noinline
func outer(n int) int {
	inner := deep(n % 60)
	runtime.Gosched()
	return inner + leaf(n)
}

// Sixty of these calls take more room than a new goroutine has.
//
//go:noinline
func deep(depth int) int {
	var room [512]byte
	if depth == 0 {
		return int(room[0])
	}
	return deep(depth-1) + len(room[:1])
}

// So small that it has no check whether its stack suffices.
//
//go:noinline
func leaf(n int) int { return 3*n + 1 }

//go:noinline
func recovers(n int) (out int) {
	defer func() {
		if recover() != nil {
			out = -n
		}
	}()
	if n%2 == 0 {
		panic("even")
	}
	return n
}

type pair struct{ first, second int }

// The probe reads what the arguments point to: two numbers, and a text that ends with a zero.
//
//go:noinline
func reads(both *pair, text *byte) int {
	return same(both.second) - both.first + int(*text)
}

//go:noinline
func same(n int) int { return n }

func round(n int) bool {
	want := n
	if n%2 == 0 {
		want = -n
	}
	text := append(strconv.AppendInt([]byte("round "), int64(n), 10), 0)
	read := reads(&pair{n, 2 * n}, &text[0])
	return outer(n) == n%60+3*n+1 && recovers(n) == want && read == n+'r'
}

func main() {
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		times, err := strconv.Atoi(strings.TrimPrefix(lines.Text(), "run "))
		if err != nil {
			break
		}
		right, depths, lock := 0, 0, sync.Mutex{}
		for first := 0; first < times; first += 4 {
			group := sync.WaitGroup{}
			for n := first; n < min(first+4, times); n++ {
				group.Add(1)
				go func() {
					defer group.Done()
					good := round(n)
					lock.Lock()
					defer lock.Unlock()
					depths += n%60 + 1
					if good {
						right++
					}
				}()
			}
			group.Wait()
		}
		fmt.Printf("main.outer=%d main.deep=%d main.leaf=%d main.recovers=%d main.reads=%d right=%d\n", times, depths, times, times, times, right)
	}
}
