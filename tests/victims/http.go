// An HTTP server that counts its answers. At each `run N` it sends itself N requests, by eight clients at
// once.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
)

//go:noinline
func countedWork(n int) int {
	defer func() { _ = recover() }()
	var p *int
	if n%5 == 0 {
		return *p // a nil check that faults: the runtime looks the address up
	}
	return growing(n%50) + n
}

//go:noinline
func growing(depth int) int {
	var room [512]byte
	if depth == 0 {
		return int(room[0])
	}
	return growing(depth-1) + len(room[:1])
}

func handle(w http.ResponseWriter, r *http.Request) {
	n, _ := strconv.Atoi(r.URL.Query().Get("n"))
	fmt.Fprintf(w, "%d", countedWork(n))
}

func ask(base string, n int) bool {
	answer, err := http.Get(base + "/?n=" + strconv.Itoa(n))
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	want := n%50 + n
	if n%5 == 0 {
		want = 0
	}
	return string(body) == strconv.Itoa(want)
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		os.Exit(3)
	}
	http.HandleFunc("/", handle)
	go http.Serve(listener, nil)
	base := "http://" + listener.Addr().String()
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		times, err := strconv.Atoi(strings.TrimPrefix(lines.Text(), "run "))
		if err != nil {
			break
		}
		wrong, lock, group := 0, sync.Mutex{}, sync.WaitGroup{}
		for c := 0; c < 8; c++ {
			group.Add(1)
			go func() {
				defer group.Done()
				for n := c; n < times; n += 8 {
					if !ask(base, n) {
						lock.Lock()
						wrong++
						lock.Unlock()
					}
				}
			}()
		}
		group.Wait()
		fmt.Printf("main.handle=%d main.countedWork=%d wrong=%d\n", times, times, wrong)
	}
}
