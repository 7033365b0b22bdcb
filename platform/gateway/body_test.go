package gateway

import (
	"io"
	"testing"

	"github.com/thaw-dev/thaw/activator/httpserver"
)

// A read that the transport left pending when the request ended counts nothing.
func TestReleasedBodyCountsNothing(t *testing.T) {
	in, client := io.Pipe()
	defer in.Close()
	budget := httpserver.NewBudget(1<<20, 1<<20)
	b := &body{in: in, memory: httpserver.Charge{Budget: budget, Account: "a"}, reads: make(chan struct{}, 1)}
	sending, ok := b.send()
	if !ok {
		t.Fatal("the body cannot be sent")
	}
	p := make([]byte, bufferSize)
	read := func() <-chan int {
		n := make(chan int, 1)
		go func() {
			m, _ := sending.Read(p)
			n <- m
		}()
		return n
	}
	got := read()
	client.Write(make([]byte, 1<<10))
	if n := <-got; n != 1<<10 || budget.Used() != 1<<10 {
		t.Fatalf("%d bytes read, %d counted", n, budget.Used())
	}
	got = read()
	b.release()
	client.Write(make([]byte, 8<<10))
	if n := <-got; n != 8<<10 || budget.Used() != 0 {
		t.Errorf("%d bytes read, %d are counted after the release, want 0", n, budget.Used())
	}
}
