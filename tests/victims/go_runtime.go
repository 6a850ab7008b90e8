// Asks much of Go's runtime, in any version from 1.16 on: goroutines that come and go, channels, timers, panics that are
// recovered, stacks that grow, garbage collection, preemption. Prints the sum that all of it comes to, and how often
// `main.work` was called.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

var calls, sum int64

//go:noinline
func work(n int) int { atomic.AddInt64(&calls, 1); return n * 3 }

//go:noinline
func deep(n int) int {
	var room [64]int
	if n == 0 {
		return work(1)
	}
	room[n%64] = n
	return deep(n-1) + room[n%64] - n
}

func recovered(n int) (got int) {
	defer func() { got = work(recover().(int)) }()
	panic(n)
}

// Faults in Go's code become panics, by `sigpanic`.
func faulted(p *int) (got int) {
	defer func() { recover(); got = work(2) }()
	return *p
}

func spins(until *int32) {
	for n := 0; atomic.LoadInt32(until) == 0; n++ {
	}
}

func main() {
	for round := 0; round < 10; round++ {
		var group sync.WaitGroup
		numbers := make(chan int, 4)
		for i := 0; i < 20; i++ {
			group.Add(1)
			go func(i int) {
				defer group.Done()
				numbers <- work(i)
				if i%5 == 0 {
					runtime.Goexit()
				}
				atomic.AddInt64(&sum, int64(deep(200)+recovered(i)+faulted(nil)))
			}(i)
		}
		var over int32
		go spins(&over)
		for i := 0; i < 20; i++ {
			select {
			case n := <-numbers:
				atomic.AddInt64(&sum, int64(n))
			case <-time.After(10 * time.Second):
				os.Exit(9)
			}
		}
		group.Wait()
		runtime.GC()
		time.Sleep(time.Millisecond)
		atomic.StoreInt32(&over, 1)
	}
	fmt.Println("sum", sum, "work", calls)
}
