// A function of C and one of Go. `run N` calls each N times with the same two arguments.
package main

// __attribute__((noinline)) int added(int a, int b) { __asm__ volatile(""); return a + b; }
import "C"

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

//go:noinline
func summed(a, b int) int {
	return a + b
}

func main() {
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		times, err := strconv.Atoi(strings.TrimPrefix(lines.Text(), "run "))
		if err != nil {
			break
		}
		wrong := 0
		for n := 0; n < times; n++ {
			if int(C.added(C.int(n), C.int(-2*n))) != summed(n, -2*n) {
				wrong++
			}
		}
		fmt.Printf("added=%d main.summed=%d wrong=%d\n", times, times, wrong)
	}
}
