// Functions with parameters of many types, called once each at `run 1`. Built as usual, and without optimization.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
)

type point struct {
	X int32
	Y float64
}
type pair struct {
	Name  string
	Count int
}
type large struct{ Items [4]int }
type named string
type counter struct {
	hits  int
	label string
	raw   []byte
	empty string
	next  *counter
}

var failed = errors.New("failed")

//go:noinline
func numbers(a int, b uint8, c bool, d float64, e *int, f int16) int {
	return a + int(b) + int(d) + *e + int(f)
}

//go:noinline
func texts(short string, long named, raw []byte) int { return len(short) + len(long) + len(raw) }

//go:noinline
func parts(p point, q pair, fn func() int) int { return int(p.X) + int(p.Y) + len(q.Name) + q.Count + fn() }

//go:noinline
func many(a, b, c, d, e, f, g, h, i, j, k int) int { return a + b + c + d + e + f + g + h + i + j + k }

//go:noinline
func stacked(all large, after int) int { return all.Items[3] + after }

//go:noinline
func blank(_ int, _ string, last int) int { return last }

// Before 1.22 the first is not declared. Where the second is, only rules say, since nothing uses it.
//
//go:noinline
func unused(_ int, second int) int { return 1 }

//go:noinline
func seventh(a, b, c, d, e, f int, in *counter) int { return a + b + c + d + e + f + in.hits }

//go:noinline
func (c *counter) add(by int) int { return c.hits + by }

//go:noinline
func first[T any](all []T, or T, unused bool, n int) int {
	if len(all) > 0 {
		or = all[0]
	}
	_ = or
	return n
}

//go:noinline
func either(n int) (int, error) {
	if n > 5 {
		return n, nil
	}
	return -n, failed
}

// Nine registers for integers, and one for a float.
//
//go:noinline
func results(n int) (a int, name string, half float64, err error, list []byte, last bool) {
	return n, "name", float64(n) / 2, failed, []byte("bytes")[:n], n > 3
}

func main() {
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		five := 5
		sum := numbers(-1, 200, true, 2.5, &five, -7)
		sum += texts("short", "named", []byte("bytes"))
		sum += parts(point{-3, 0.5}, pair{"pair", 9}, func() int { return five })
		sum += many(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
		sum += stacked(large{[4]int{1, 2, 3, 4}}, 6)
		sum += blank(1, "two", 3) + unused(70, 71)
		sum += seventh(1, 2, 3, 4, 5, 6, &counter{hits: 41, label: "seventh"})
		sum += (&counter{40, "label", []byte("rawest")[:3], "", &counter{label: "next"}}).add(2)
		sum += first([]string{"a"}, "or", true, 7) + first(nil, 1.5, true, 8)
		n, err := either(9)
		m, other := either(-3)
		if err != nil || other == nil {
			break
		}
		a, _, half, _, list, _ := results(4)
		sum += a + int(half) + len(list)
		fmt.Printf("sum=%d wrong=0\n", sum+n+m)
	}
}
