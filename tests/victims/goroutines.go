// Calls of `main.probed` from goroutines of many kinds. `stacks` prints the stacks as Go's runtime has them,
// as a line of JSON. For each stack there is how often it occurred, and from the caller on each function's
// return address and name, with `[i]` behind a function that was inlined into the next.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	_ "os/user" // with cgo the program is linked with the C library
	"runtime"
	"strconv"
	"strings"
	"sync"
	"unsafe"
)

type stack struct {
	Hits  int       `json:"hits"`
	Pcs   []uintptr `json:"pcs"`
	Names []string  `json:"names"`
}

var (
	lock   sync.Mutex
	stacks = map[string]*stack{}
	calls  int
	group  sync.WaitGroup
)

// nosplit: without the check whether the stack suffices. The check could begin the function again on a larger
// stack.
//
//go:nosplit
//go:noinline
func probed(n int) int {
	return note(n) + 1
}

//go:noinline
func note(n int) int {
	var pcs [512]uintptr
	// Skips Callers, note and probed.
	some := pcs[:runtime.Callers(3, pcs[:])]
	key := fmt.Sprint(some)
	lock.Lock()
	defer lock.Unlock()
	calls++
	if stacks[key] == nil {
		one := &stack{Pcs: append([]uintptr{}, some...)}
		frames := runtime.CallersFrames(some)
		for {
			frame, more := frames.Next()
			inlined := ""
			if frame.Func == nil {
				inlined = "[i]"
			}
			one.Names = append(one.Names, frame.Function+inlined)
			if !more {
				break
			}
		}
		stacks[key] = one
	}
	stacks[key].Hits++
	return n
}

// Small enough to be inlined.
func hit(n int) int { return probed(n) + probed(n+1) }

//go:noinline
func deep(n, depth int) int {
	if depth == 0 {
		return hit(n)
	}
	return deep(n, depth-1) + 1
}

type shape interface{ area(n int) int }
type square struct{ side int }

//go:noinline
func (s *square) area(n int) int { return hit(n) * s.side }

// Calls while a panic unwinds, which a call of panic or a fault began.
//
//go:noinline
func panics(n int, p *int) (out int) {
	defer func() {
		out = probed(n)
		_ = recover()
	}()
	if p == nil {
		panic("no number")
	}
	return fault(p)
}

//go:noinline
func fault(p *int) int { return note(*p) }

// No memory is mapped there: the fault becomes a panic.
var nowhere = (*int)(unsafe.Pointer(uintptr(8)))

func round(n int, of shape) {
	hit(n)
	of.area(n)
	func() { deep(n, 3) }()
	deep(n, 60)
	panics(n, nil)
	panics(n, nowhere)
}

func run(times int) {
	for n := 0; n < times; n++ {
		round(n, &square{n})
		group.Add(3)
		go func() {
			defer group.Done()
			round(n, &square{n})
		}()
		go hitOnce()
		go func() {
			runtime.LockOSThread()
			defer group.Done()
			// Deeper than a record holds.
			deep(n, 300)
		}()
		group.Wait()
	}
}

// Without arguments, so that it begins a goroutine itself; Go would leave out a wrapper.
//
//go:noinline
func hitOnce() {
	hit(0)
	group.Done()
}

func main() {
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if lines.Text() == "stacks" {
			all := []*stack{}
			for _, one := range stacks {
				all = append(all, one)
			}
			text, _ := json.Marshal(all)
			fmt.Println(string(text))
			continue
		}
		times, err := strconv.Atoi(strings.TrimPrefix(lines.Text(), "run "))
		if err != nil {
			break
		}
		stacks, calls = map[string]*stack{}, 0
		run(times)
		fmt.Printf("main.probed=%d\n", calls)
	}
}
