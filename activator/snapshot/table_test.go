package snapshot

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/thaw-dev/thaw/functions"
)

func parseName(s string) functions.Name {
	n, err := functions.ParseName(s, functions.DefaultTeam)
	if err != nil {
		panic(err)
	}
	return n
}

func TestPutAndDrop(t *testing.T) {
	fresh := 0
	tab := NewTable(func(e *Entry[int]) { fresh++; e.Data = fresh })
	var befores []*Snapshot
	each := func(_ *Entry[int], before *Snapshot) { befores = append(befores, before) }
	tab.Put(each, Snapshot{Name: parseName("b")}, Snapshot{Name: parseName("a")}, Snapshot{Name: parseName("x/c")})
	e := tab.Lookup(parseName("a"))
	if e == nil || fresh != 3 || len(befores) != 3 || befores[0] != nil {
		t.Fatalf("entry %v, fresh %d, befores %v", e, fresh, befores)
	}
	tab.Put(each, Snapshot{Name: parseName("a"), State: functions.Ready}, Snapshot{Name: parseName("a"), State: functions.Failed})
	if tab.Lookup(parseName("a")) != e || e.Snapshot().State != functions.Failed || fresh != 3 {
		t.Fatalf("a new picture must keep the entry: %v", e.Snapshot().State)
	}
	if befores[3].State != "" || befores[4].State != functions.Ready {
		t.Fatalf("befores out of order: %v %v", befores[3], befores[4])
	}
	var names []string
	for _, e := range tab.All() {
		names = append(names, e.Name.String())
	}
	if got := fmt.Sprint(names); got != "[default/a default/b x/c]" {
		t.Fatal(got)
	}
	if len(tab.Team("default")) != 2 || len(tab.Team("x")) != 1 || tab.Team("y") != nil {
		t.Fatal("lists of teams")
	}
	dropped := 0
	tab.Remove(func(*Entry[int]) { dropped++ }, parseName("a"), parseName("a"), parseName("nope"))
	if tab.Lookup(parseName("a")) != nil || !e.Removed() || dropped != 1 || len(tab.All()) != 2 {
		t.Fatal("drop")
	}
}

func TestSlots(t *testing.T) {
	f := Snapshot{Model: &functions.Model{}, Replicas: []Replica{{Slots: 3}, {}}}
	f.Model.Spec.Scale.Target = 4
	if got := f.SlotsOf(&f.Replicas[0]) + f.SlotsOf(&f.Replicas[1]); got != 3+8 {
		t.Fatalf("%d slots, want 11: unknown slots count twice the target", got)
	}
}

func TestNearest(t *testing.T) {
	tab := NewTable(func(*Entry[struct{}]) {})
	for _, n := range []string{"tiny", "tinny", "llama-3-8b", "llama-3-70b", "qwen", "other/tiny2"} {
		tab.Put(ignore, Snapshot{Name: parseName(n)})
	}
	for _, c := range []struct {
		ask  string
		want []string
	}{
		{"tiny2", []string{"tiny", "tinny"}},
		{"llama-3", []string{"llama-3-8b", "llama-3-70b"}},
		{"zzzzzz", nil},
		{"qwem", []string{"qwen"}},
		{"", nil},
	} {
		if got := tab.Nearest("default", c.ask, 3); c.ask != "" && !slices.Equal(got, c.want) {
			t.Errorf("%q: %v, want %v", c.ask, got, c.want)
		}
	}
}

func TestConcurrent(t *testing.T) {
	tab := NewTable(func(*Entry[struct{}]) {})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 200 {
				n := parseName(fmt.Sprintf("f%d", (i*7+j)%20))
				switch j % 5 {
				case 0:
					tab.Remove(func(*Entry[struct{}]) {}, n)
				case 1, 2:
					tab.Put(ignore, Snapshot{Name: n})
				default:
					if e := tab.Lookup(n); e != nil && e.Snapshot().Name != n {
						t.Error("wrong picture")
					}
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkLookup10000(b *testing.B) {
	tab := NewTable(func(*Entry[struct{}]) {})
	fs := make([]Snapshot, 10000)
	for i := range fs {
		fs[i].Name = parseName(fmt.Sprintf("model-%d", i))
	}
	tab.Put(ignore, fs...)
	n := parseName("model-7777")
	b.ReportAllocs()
	for b.Loop() {
		tab.Lookup(n)
	}
}

func BenchmarkNearest10000(b *testing.B) {
	tab := NewTable(func(*Entry[struct{}]) {})
	fs := make([]Snapshot, 10000)
	for i := range fs {
		fs[i].Name = parseName(fmt.Sprintf("model-%d-instruct", i))
	}
	tab.Put(ignore, fs...)
	b.ReportAllocs()
	for b.Loop() {
		tab.Nearest("default", "model-instruct-987654", 3)
	}
}

// ignore ignores a change.
func ignore(*Entry[struct{}], *Snapshot) {}

func FuzzNearest(f *testing.F) {
	tab := NewTable(func(*Entry[struct{}]) {})
	for _, n := range []string{"tiny", "tinny", "llama-3-8b"} {
		tab.Put(ignore, Snapshot{Name: parseName(n)})
	}
	f.Add("tiny")
	f.Add("\xff\x00")
	f.Fuzz(func(t *testing.T, s string) {
		if got := tab.Nearest("default", s, 3); len(got) > 3 {
			t.Error(got)
		}
	})
}
