// Changes on request what its probes rely on, by Go's own system calls. For each line: `tsc` forbids the
// thread to read the time-stamp counter, calls Work 8 times and allows it again; `filter` installs a filter on
// the thread that kills for process_vm_readv; `run N` calls Work N times; each prints `done`.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"unsafe"
)

const (
	prSetTSC      = 26
	tscEnable     = 1
	tscSigsegv    = 2
	prNoNewPrivs  = 38
	setModeFilter = 1
)

// Numbers of seccomp and process_vm_readv.
func numbers() (seccomp uintptr, readv uint32) {
	if runtime.GOARCH == "arm64" {
		return 277, 270
	}
	return 317, 310
}

type sockFilter struct {
	code   uint16
	jt, jf uint8
	k      uint32
}

type sockFprog struct {
	len    uint16
	filter *sockFilter
}

//go:noinline
func Work(text string) uint64 {
	return uint64(len(text))*3 + uint64(text[0])
}

func tsc(texts []string) (sum uint64) {
	if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, prSetTSC, tscSigsegv, 0); e != 0 {
		panic(e)
	}
	for i := range texts {
		sum += Work(texts[i])
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, prSetTSC, tscEnable, 0); e != 0 {
		panic(e)
	}
	return sum
}

func filter() {
	seccomp, readv := numbers()
	code := []sockFilter{
		{0x20, 0, 0, 0},
		{0x15, 0, 1, readv},
		{0x06, 0, 0, 0x80000000},
		{0x06, 0, 0, 0x7fff0000},
	}
	prog := sockFprog{uint16(len(code)), &code[0]}
	if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, prNoNewPrivs, 1, 0, 0, 0, 0); e != 0 {
		panic(e)
	}
	if _, _, e := syscall.Syscall(seccomp, setModeFilter, 0, uintptr(unsafe.Pointer(&prog))); e != 0 {
		panic(e)
	}
}

func main() {
	runtime.LockOSThread()
	var sum uint64
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("ready")
	for in.Scan() {
		words := strings.Fields(in.Text())
		times := 8
		switch words[0] {
		case "run":
			fmt.Sscan(words[1], &times)
			for i := 0; i < times; i++ {
				sum += Work(fmt.Sprintf("text %d", i))
			}
		case "tsc":
			texts := make([]string, times)
			for i := range texts {
				texts[i] = fmt.Sprintf("text %d", i)
			}
			sum += tsc(texts)
		case "filter":
			filter()
		case "quit":
			return
		}
		fmt.Println("done")
	}
}
