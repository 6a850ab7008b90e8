// What Go's compiler compiles while `values` looks at it: as many kinds of statements and types as fit.
package main

type shape interface {
	area() float64
	name() string
}
type square struct{ side float64 }
type circle struct {
	radius float64
	label  string
}

func (s square) area() float64  { return s.side * s.side }
func (s square) name() string   { return "square" }
func (c *circle) area() float64 { return 3.14 * c.radius * c.radius }
func (c *circle) name() string  { return c.label }

type number interface{ ~int | ~float64 }
type list[T any] struct {
	items []T
	next  *list[T]
}

func (l *list[T]) push(item T) { l.items = append(l.items, item) }

func sum[T number](all []T) (total T) {
	for _, one := range all {
		total += one
	}
	return
}

type words map[string][]int
type kind uint8

const (
	small kind = iota
	large
)

var table = [...]struct {
	key   string
	value complex128
}{{"a", 1 + 2i}, {"b", 3}}

func count(text string) words {
	found := words{}
	begin := 0
	for at, letter := range text + " " {
		switch {
		case letter == ' ' && begin < at:
			found[text[begin:at]] = append(found[text[begin:at]], begin)
			fallthrough
		case letter == ' ':
			begin = at + 1
		default:
			continue
		}
	}
	return found
}

func guarded(divide func(a, b int) int, a, b int) (result int, failed bool) {
	defer func() {
		if recover() != nil {
			failed = true
		}
	}()
	return divide(a, b), false
}

func send(many int, out chan<- int, done <-chan struct{}) {
loop:
	for n := range many {
		select {
		case out <- n * n:
		case <-done:
			break loop
		}
	}
	close(out)
}

func classify(value any) (kind, string) {
	switch one := value.(type) {
	case int:
		if one&0xff > 100 || one<<2 == 8 {
			return large, "int"
		}
	case string:
		return small, one[1:]
	case error:
		return large, one.Error()
	case []byte:
		return kind(len(one) % 2), string(one)
	}
	return small, ""
}

func main() {
	numbers := make([]int, 0, 8)
	numbers = append(numbers, 3, 1, 2)
	copy(numbers[1:], numbers)
	shapes := []shape{square{2}, &circle{1, "circle"}}
	total := 0.0
	for _, one := range shapes {
		total += one.area()
	}
	texts := &list[string]{}
	texts.push(shapes[1].name())
	out, done := make(chan int), make(chan struct{})
	go send(5, out, done)
	for n := range out {
		numbers = append(numbers, n)
	}
	result, failed := guarded(func(a, b int) int { return a / b }, numbers[0], 0)
	found := count("one two one")
	delete(found, "two")
	k, text := classify([]byte(texts.items[0]))
	println(sum(numbers), sum([]float64{total}), len(found["one"]), result, failed, k, text, real(table[0].value))
	if len(numbers) > 3 && !failed {
		goto end
	}
	clear(found)
end:
	println(min(numbers[0], 7), max(total, 2.5), cap(numbers))
}
