// Forbids its thread to read the time-stamp counter by the C library. For each line `tsc`: it does so, calls c_work
// 8 times, allows it again, and prints `done`. All in C, as Go's runtime reads the counter itself.
package main

// #include <sys/prctl.h>
// __attribute__((noinline)) long c_work(long n) { __asm__ volatile(""); return n * 3 + 1; }
// static long denied(void) {
//     long sum = prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
//     for (long n = 0; n < 8; n++) sum += c_work(n);
//     return sum + prctl(PR_SET_TSC, PR_TSC_ENABLE);
// }
import "C"

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
)

func main() {
	runtime.LockOSThread()
	var sum C.long
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for in.Scan() {
		if in.Text() == "tsc" {
			sum += C.denied()
		}
		fmt.Println("done")
	}
}
