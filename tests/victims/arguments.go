// A function with integer arguments, called by eight goroutines at once, N times each at `run N`. Go passes them in registers of its own
// choice (rax, rbx, rcx, rdi, rsi, r8); those that are the C convention's too are the third to the sixth.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
)

const goroutines = 8

// Without a look at whether the stack suffices: that would begin the function again on a larger one.
//
//go:nosplit
//go:noinline
func mixed(a, b, c, d, e, f int) int {
	return a ^ b ^ c ^ d ^ e ^ f
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
		var wrong [goroutines]int
		for g := 0; g < goroutines; g++ {
			group.Add(1)
			go func() {
				defer group.Done()
				work(g*times, (g+1)*times, &wrong[g])
			}()
		}
		group.Wait()
		sum := 0
		for _, one := range wrong {
			sum += one
		}
		fmt.Printf("main.mixed=%d wrong=%d\n", goroutines*times, sum)
	}
}
