// A function with integer arguments. Eight goroutines call it at once, N times each at `run N`. Go passes the
// arguments in registers of its own choice (rax, rbx, rcx, rdi, rsi, r8).
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

const (
	goroutines = 8
	depth      = 100
	spoken     = "what is said by goroutines"
)

// nosplit: without the check whether the stack suffices. The check could begin the function again on a larger
// stack.
//
//go:nosplit
//go:noinline
func mixed(a, b, c, d, e, f int) int {
	return a ^ b ^ c ^ d ^ e ^ f
}

// Takes a text, and a number derived from it.
//
//go:nosplit
//go:noinline
func said(a, b, n int, text string) int {
	return a + b + n + len(text)
}

// Recurses n times, on a stack that begins small. At some depth there is little room below.
//
//go:noinline
func deeper(n int, text string, wrong *int) int {
	if said(1, 2, n, text[:n%len(text)]) != 3+n+n%len(text) {
		*wrong++
	}
	if n == 0 {
		return 0
	}
	return deeper(n-1, text, wrong) + n
}

// Its stack moves while it runs, and it may continue on another thread.
//
//go:nosplit
//go:noinline
func moved(a, b, c, n int) int {
	return grown(n) + a + b + c
}

// There is no room for this on a new goroutine's stack.
//
//go:noinline
func grown(n int) int {
	var room [1 << 16]byte
	room[n%len(room)] = 1
	runtime.Gosched()
	return n + int(room[n%len(room)])
}

// Starts as many goroutines as numbers, some at a time.
func move(from, to int, wrong *int) {
	for n := from; n < to; n++ {
		done := make(chan int)
		go func() { done <- moved(1, 2, 3, n) }()
		if <-done != n+7 {
			*wrong++
		}
	}
}

func work(from, to int, wrong *int) {
	for n := from; n < to; n++ {
		if mixed(1, 2, n, n*3, -n, n+7) != 1^2^n^(n*3)^-n^(n+7) {
			*wrong++
		}
	}
}

func main() {
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		times, err := strconv.Atoi(strings.TrimPrefix(lines.Text(), "run "))
		if err != nil {
			break
		}
		var group sync.WaitGroup
		var wrong, deep, gone [goroutines]int
		for g := 0; g < goroutines; g++ {
			group.Add(1)
			go func() {
				defer group.Done()
				work(g*times, (g+1)*times, &wrong[g])
			}()
			group.Add(1)
			go func() {
				defer group.Done()
				move(g*times, (g+1)*times, &gone[g])
			}()
			group.Add(1)
			go func() {
				defer group.Done()
				if deeper(depth, spoken, &deep[g]) != depth*(depth+1)/2 {
					deep[g]++
				}
			}()
		}
		group.Wait()
		sum := 0
		for g, one := range wrong {
			sum += one + deep[g] + gone[g]
		}
		fmt.Printf("main.mixed=%d main.moved=%d main.said=%d wrong=%d\n", goroutines*times, goroutines*times,
			goroutines*(depth+1), sum)
	}
}
