// Forbids its thread to read the time-stamp counter by the C library. For each line `tsc`: it does so, calls Work
// 8 times, allows it again, and prints `done`.
package main

// #include <sys/prctl.h>
// static int counter(int how) { return prctl(PR_SET_TSC, how); }
import "C"

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
)

//go:noinline
func Work(n uint64) uint64 {
	return n*3 + 1
}

func main() {
	runtime.LockOSThread()
	var sum uint64
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for in.Scan() {
		if in.Text() == "tsc" {
			C.counter(C.PR_TSC_SIGSEGV)
			for n := uint64(0); n < 8; n++ {
				sum += Work(n)
			}
			C.counter(C.PR_TSC_ENABLE)
		}
		fmt.Println("done")
	}
}
